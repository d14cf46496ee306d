import { valueText } from "./arguments.js";
import { CapsedgeError } from "./errors.js";
import { LIMITS, type Limits } from "./generated/spec.js";
import { short } from "./text.js";

export { LIMITS, type Limits };

/**
 * The limits, some of them lowered.
 *
 * @throws CapsedgeError `input` if one is unknown, not a whole number, or larger than the one it replaces.
 */
export function limitsOf(given: Partial<Limits> = {}): Limits {
  if (typeof given !== "object" || given === null) {
    throw new CapsedgeError("input", `limits is ${valueText(given)}.`, "Pass an object, such as { fileBytes: 50e6 }.");
  }
  for (const [name, value] of Object.entries(given)) {
    const most = Object.hasOwn(LIMITS, name) ? LIMITS[name as keyof Limits] : 0;
    if (!Number.isInteger(value) || value < 0 || value > most) {
      throw new CapsedgeError(
        "input",
        `The limit ${short(name)} is ${valueText(value)}.`,
        `Limits are whole numbers, not larger than those of LIMITS: ${Object.keys(LIMITS).join(", ")}.`,
      );
    }
  }
  return { ...LIMITS, ...given };
}
