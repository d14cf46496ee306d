/** Read JSON from files, bounded and strict, as in `documents.py`. */
import { Malformed } from "./errors.js";
import { JSON_DEPTH, METADATA_VALUES } from "./generated/spec.js";
import { grouped, short } from "./text.js";

/** A value in a document. Whole numbers are `bigint`, others `number`, so that 1 and 1.0 stay distinct. */
export type Json = null | boolean | number | bigint | string | Json[] | Map<string, Json>;

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const HEX = /[0-9a-fA-F]{4}/y;
const CONSTANTS: [string, Json][] = [
  ["null", null],
  ["true", true],
  ["false", false],
];
const ESCAPES: Record<string, string> = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const INTEGER_DIGITS = 20; // 64 bits and a sign
const LEAST = -(2n ** 63n);
const MOST = 2n ** 64n - 1n;

/**
 * The plain values of a JSON document.
 *
 * @throws Malformed if it is not JSON, exceeds the limits, or repeats a key.
 */
export function parseJson(text: string): Json {
  const reader = new Reader(text);
  const value = reader.value(1);
  reader.finish();
  return value;
}

class Reader {
  private at = 0;
  private count = 0;

  constructor(private readonly text: string) {}

  finish(): void {
    this.matched(SPACE);
    if (this.at < this.text.length) this.unexpected();
  }

  value(depth: number): Json {
    if (++this.count > METADATA_VALUES) throw new Malformed(`it has over ${grouped(METADATA_VALUES)} values`, true);
    this.matched(SPACE);
    const first = this.text[this.at];
    if (first === "{" || first === "[") {
      if (depth >= JSON_DEPTH) throw new Malformed(`it is nested over ${JSON_DEPTH} deep`, true);
      return first === "{" ? this.object(depth) : this.list(depth);
    }
    if (first === '"') return this.string();
    for (const [word, value] of CONSTANTS) {
      if (this.take(word)) return value;
    }
    return this.number();
  }

  private object(depth: number): Map<string, Json> {
    const found = new Map<string, Json>();
    this.at++;
    if (this.closes("}")) return found;
    do {
      this.matched(SPACE);
      if (this.text[this.at] !== '"') this.unexpected();
      const name = this.string();
      if (found.has(name)) throw new Malformed(`it names '${short(name)}' twice`);
      this.matched(SPACE);
      if (!this.take(":")) this.unexpected();
      found.set(name, this.value(depth + 1));
      this.matched(SPACE);
    } while (this.take(","));
    if (!this.take("}")) this.unexpected();
    return found;
  }

  private list(depth: number): Json[] {
    const found: Json[] = [];
    this.at++;
    if (this.closes("]")) return found;
    do {
      found.push(this.value(depth + 1));
      this.matched(SPACE);
    } while (this.take(","));
    if (!this.take("]")) this.unexpected();
    return found;
  }

  private closes(bracket: string): boolean {
    this.matched(SPACE);
    return this.take(bracket);
  }

  private number(): Json {
    NUMBER.lastIndex = this.at;
    const found = NUMBER.exec(this.text);
    if (!found) return this.unexpected();
    this.at += found[0].length;
    if (found[1] === undefined && found[2] === undefined) return whole(found[0]);
    const value = Number(found[0]);
    if (!Number.isFinite(value)) throw new Malformed(`it has the number ${short(found[0])}`);
    return value;
  }

  private string(): string {
    let found = "";
    this.at++;
    for (;;) {
      found += this.matched(PLAIN);
      const next = this.text[this.at++];
      if (next === '"') break;
      if (next !== "\\") {
        this.at--;
        this.unexpected();
      }
      found += this.escape();
    }
    if (!isWellFormed(found)) throw new Malformed("it has half a surrogate pair");
    return found;
  }

  private escape(): string {
    const letter = this.text[this.at++] ?? "";
    const plain = ESCAPES[letter];
    if (plain !== undefined) return plain;
    const code = letter === "u" ? this.matched(HEX) : "";
    if (!code) {
      this.at--;
      this.unexpected();
    }
    return String.fromCharCode(Number.parseInt(code, 16));
  }

  private matched(pattern: RegExp): string {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text)?.[0] ?? "";
    this.at += found.length;
    return found;
  }

  private take(word: string): boolean {
    if (!this.text.startsWith(word, this.at)) return false;
    this.at += word.length;
    return true;
  }

  private unexpected(): never {
    const ended = this.at >= this.text.length;
    throw new Malformed(ended ? "it is not JSON: it ends early" : `it is not JSON at character ${this.at}`);
  }
}

function whole(digits: string): bigint {
  const value = digits.length > INTEGER_DIGITS ? MOST + 1n : BigInt(digits);
  if (value < LEAST || value > MOST) throw new Malformed("it has a number of over 64 bits");
  return value;
}

function isWellFormed(text: string): boolean {
  return !/[\ud800-\udfff]/u.test(text); // with the flag, a whole pair is one character
}
