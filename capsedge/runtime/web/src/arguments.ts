/** Check the arguments of a call against the table of the specification, before anything runs. */
import { CapsedgeError } from "./errors.js";
import { ARGUMENTS, CALL_OPTIONS } from "./generated/spec.js";
import { short } from "./text.js";

type Call = keyof typeof CALL_OPTIONS;
type Name = keyof typeof ARGUMENTS;

/**
 * Refuse options that a call does not have, and values that one cannot have; those that are undefined are left out.
 *
 * @throws CapsedgeError `input`.
 */
export function checkOptions(call: Call, options: unknown): void {
  const known: readonly string[] = CALL_OPTIONS[call];
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    const hint = `Pass an object, such as { ${known[0]}: ... }. The options are ${known.join(", ")}.`;
    throw new CapsedgeError("input", `The options of ${call} are ${valueText(options)}.`, hint);
  }
  for (const [name, value] of Object.entries(options)) {
    if (!known.includes(name)) throw unknownOption(call, name, known);
    if (value !== undefined && Object.hasOwn(ARGUMENTS, name)) checkArgument(name as Name, value);
  }
}

/**
 * Refuse a value that an argument cannot have.
 *
 * @throws CapsedgeError `input`.
 */
export function checkArgument(name: Name, value: unknown): void {
  const { kind, least, most, wanted } = ARGUMENTS[name];
  const fits =
    kind === "switch"
      ? typeof value === "boolean"
      : typeof value === "number" &&
        (kind === "number" || Number.isInteger(value)) &&
        value >= (least ?? -Infinity) &&
        value <= (most ?? Infinity);
  if (!fits) throw new CapsedgeError("input", `${name} is ${valueText(value)}.`, `It takes ${wanted}.`);
}

/** What a value is, for messages: `the text "28"`, `an Array`, `missing`. */
export function valueText(value: unknown): string {
  if (value === undefined) return "missing";
  if (typeof value === "string") return `the text "${short(value, 40)}"`;
  if (typeof value === "function") return "a function";
  if (typeof value !== "object" || value === null) return String(value);
  const kind = value.constructor?.name ?? "Object";
  return `${/^[AEIO]/.test(kind) ? "an" : "a"} ${short(kind, 40)}`;
}

function unknownOption(call: Call, name: string, known: readonly string[]): CapsedgeError {
  const close = known.find((each) => distance(each.toLowerCase(), name.toLowerCase()) <= 2);
  return new CapsedgeError(
    "input",
    `${call} has no option '${short(name, 40)}'.`,
    close ? `Did you mean '${close}'?` : `Its options are ${known.join(", ")}.`,
  );
}

/** Letters to insert, remove or replace to turn one word into the other (Levenshtein). */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, k) => k);
  for (const [i, letter] of [...a].entries()) {
    const next = [i + 1];
    for (const [k, other] of [...b].entries()) {
      const kept = (row[k] ?? 0) + (letter === other ? 0 : 1);
      next.push(Math.min(kept, (row[k + 1] ?? 0) + 1, (next[k] ?? 0) + 1));
    }
    row = next;
  }
  return row[b.length] ?? 0;
}
