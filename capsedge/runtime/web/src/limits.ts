import { CapsedgeError } from "./errors.js";
import { LIMITS, type Limits } from "./generated/spec.js";

export { LIMITS, type Limits };

/**
 * The limits, some of them lowered.
 *
 * @throws CapsedgeError `input` if one is unknown, not a whole number, or larger than the one it replaces.
 */
export function limitsOf(given: Partial<Limits> = {}): Limits {
  for (const [name, value] of Object.entries(given)) {
    const most = Object.hasOwn(LIMITS, name) ? LIMITS[name as keyof Limits] : 0;
    if (!Number.isInteger(value) || value < 0 || value > most) {
      throw new CapsedgeError(
        "input",
        `The limit ${name} is ${value}.`,
        `Limits are whole numbers, not larger than those of LIMITS: ${Object.keys(LIMITS).join(", ")}.`,
      );
    }
  }
  return { ...LIMITS, ...given };
}
