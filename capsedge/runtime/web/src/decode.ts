/** Typed values from JSON: small, composable readers, each of which refuses anything it does not describe. */
import { Malformed } from "./errors.js";
import type { Json } from "./json.js";
import { short } from "./text.js";

/** Reads a value; `name` is its name in errors. Throws `Malformed`. */
export type Decoder<T> = (value: Json, name: string) => T;

export const string: Decoder<string> = (value, name) =>
  typeof value === "string" ? value : wrong(value, name, "a string");

/** A whole number; from 2^53 upwards the nearest double, which no limit allows as a size. */
export const integer: Decoder<number> = (value, name) =>
  typeof value === "bigint" ? Number(value) : wrong(value, name, "a whole number");

/** A number, whole or not. */
export const real: Decoder<number> = (value, name) =>
  typeof value === "number" || typeof value === "bigint" ? Number(value) : wrong(value, name, "a number");

export const boolean: Decoder<boolean> = (value, name) =>
  typeof value === "boolean" ? value : wrong(value, name, "true or false");

/** A plain value of a comparison: neither a list nor an object. */
export const scalar: Decoder<string | number | boolean | null> = (value, name) => {
  if (typeof value === "bigint") return Number(value);
  if (value === null || typeof value !== "object") return value;
  return wrong(value, name, "a string, a number, true, false or null");
};

/** An object whose contents are not read. */
export const unread: Decoder<undefined> = (value, name) =>
  value instanceof Map ? undefined : wrong(value, name, "an object");

/** A list whose items all have the same form. */
export function list<T>(item: Decoder<T>): Decoder<T[]> {
  return (value, name) =>
    Array.isArray(value) ? value.map((each, k) => item(each, `${name}[${k}]`)) : wrong(value, name, "a list");
}

/** A list of two items. */
export function pair<T>(item: Decoder<T>): Decoder<[T, T]> {
  return (value, name) => {
    if (!Array.isArray(value)) return wrong(value, name, "a list");
    const [first, second] = value;
    if (value.length !== 2 || first === undefined || second === undefined) {
      throw new Malformed(`${name} has ${value.length} values, wanted 2`);
    }
    return [item(first, `${name}[0]`), item(second, `${name}[1]`)];
  };
}

/** The value, or null. */
export function nullable<T>(kind: Decoder<T>): Decoder<T | null> {
  return (value, name) => (value === null ? null : kind(value, name));
}

/** An object with arbitrary names. */
export function mapping<T>(item: Decoder<T>): Decoder<Map<string, T>> {
  return (value, name) => {
    if (!(value instanceof Map)) return wrong(value, name, "an object");
    return new Map([...value].map(([key, each]) => [key, item(each, joined(name, short(key)))]));
  };
}

type Fields<T> = { [K in keyof T]: Decoder<T[K]> };

/** An object with exactly these names; those in `optional` may be missing and then have the value given there. */
export function object<T extends object>(fields: Fields<T>, optional: NoInfer<Partial<T>> = {}): Decoder<T> {
  return (value, name) => {
    if (!(value instanceof Map)) return wrong(value, name, "an object");
    for (const key of value.keys()) {
      if (!Object.hasOwn(fields, key)) throw new Malformed(`unknown: ${joined(name, short(key))}`);
    }
    const entries = (Object.keys(fields) as (keyof T & string)[]).map((key) => {
      const found = value.get(key);
      if (found !== undefined) return [key, fields[key](found, joined(name, key))];
      if (!Object.hasOwn(optional, key)) throw new Malformed(`missing: ${joined(name, key)}`);
      return [key, optional[key]];
    });
    return Object.fromEntries(entries) as T;
  };
}

function joined(name: string, key: string): string {
  return name ? `${name}.${key}` : key;
}

function wrong(value: Json, name: string, wanted: string): never {
  throw new Malformed(`${name || "the document"} is ${nameOf(value)}, wanted ${wanted}`);
}

function nameOf(value: Json): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "a list";
  if (value instanceof Map) return "an object";
  const names = { string: "a string", boolean: "true or false", bigint: "a whole number", number: "a number" };
  return names[typeof value as keyof typeof names];
}
