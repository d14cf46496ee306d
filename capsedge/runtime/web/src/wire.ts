/**
 * The wire format of ONNX files: the fields of their messages, and how the bytes are walked.
 *
 * capsedge/spec/onnx_wire.py explains the text that describes the messages.
 */
import { Malformed } from "./errors.js";
import { ONNX_WIRE } from "./generated/spec.js";
import { grouped } from "./text.js";

export const VARINT = 0;
export const FIXED64 = 1;
export const BYTES = 2;
export const FIXED32 = 5;
const WIRES: Record<string, number> = { int64: VARINT, int32: VARINT, float: FIXED32, double: FIXED64 };

/** The field that a tag stands for. */
export interface FieldType {
  number: number;
  /** Its bit among the fields that occur at most once; 0 for a repeated field. */
  once: number;
  /** Whether its values have 32 bits; protobuf would drop any further bits. */
  narrow: boolean;
  /** The message that a submessage field holds. */
  message: MessageType | undefined;
}

/** A message and its fields by tag: the number times 8, plus the wire type. */
export interface MessageType {
  name: string;
  fields: Map<number, FieldType>;
}

function parseSchema(): MessageType {
  const lines = ONNX_WIRE.replaceAll(",\n   ", ",").trim().split("\n");
  const declared = lines.map((line) => [line.slice(0, line.indexOf(" ")), line.slice(line.indexOf(" ") + 1)]);
  const messages = new Map<string, MessageType>();
  for (const [name = ""] of declared) messages.set(name, { name, fields: new Map() });
  for (const [name = "", entries = ""] of declared) {
    for (const [k, entry] of entries.split(", ").entries()) {
      const [number = "", kind = ""] = entry.split(" ");
      const plain = kind.replace(/[*|]$/, "");
      const once = kind.endsWith("*") ? 0 : kind.endsWith("|") ? 1 : 1 << (k + 1); // the first bit belongs to the oneof
      const type = {
        number: Number(number),
        once,
        narrow: plain === "int32" && once !== 0,
        message: messages.get(plain),
      };
      const fields = messages.get(name)?.fields;
      fields?.set((type.number << 3) | (WIRES[plain] ?? BYTES), type);
      if (once === 0) fields?.set((type.number << 3) | BYTES, type); // numbers may be packed
    }
  }
  return messages.get("ModelProto") as MessageType;
}

export const MODEL = parseSchema();

/** A field of a message: the value of a number, or the bytes from `start` to `end`. */
export interface Field {
  number: number;
  wire: number;
  /** The offset of its tag. */
  at: number;
  /** The value of a varint, inexact from 2^53 upwards. */
  value: number;
  /** The lower and upper 32 bits of a varint, exact. */
  low: number;
  high: number;
  start: number;
  end: number;
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const OVER_64_BITS = 2 ** 32;

/** Reads protobuf's wire format; anything that protobuf would read differently is refused with `Malformed`. */
export class Wire {
  private seen = 0;
  private low = 0;
  private high = 0;
  private next = 0;

  constructor(
    readonly data: Uint8Array,
    private readonly mostFields: number,
  ) {}

  /** The fields between two offsets. */
  *fields(start: number, end: number): Generator<Field> {
    let at = start;
    while (at < end) {
      if (++this.seen > this.mostFields) {
        throw new Malformed(`it has more than ${grouped(this.mostFields)} fields`, true);
      }
      const field = this.field(at, end);
      yield field;
      at = field.end;
    }
  }

  private field(at: number, end: number): Field {
    const tag = this.tag(at, end);
    const wire = tag % 8;
    const start = this.next;
    const found: Field = { number: Math.floor(tag / 8), wire, at, value: 0, low: 0, high: 0, start, end: start };
    if (wire === VARINT) {
      found.value = this.varint(found.start, end);
      found.low = this.low;
      found.high = this.high;
      found.end = this.next;
    } else if (wire === BYTES) {
      const length = this.varint(found.start, end);
      found.start = this.next;
      if (length > end - found.start) {
        throw new Malformed(
          `a field at byte ${found.start} needs ${grouped(length)} bytes and ${grouped(end - found.start)} are left`,
        );
      }
      found.end = found.start + length;
    } else if (wire === FIXED32 || wire === FIXED64) {
      found.end = found.start + (wire === FIXED32 ? 4 : 8);
      if (found.end > end) throw new Malformed(`it ends inside the field at byte ${found.start}`);
    } else {
      throw new Malformed(`a field at byte ${at} has the unknown wire type ${wire}`);
    }
    return found;
  }

  /** A field's number and wire type, which take 32 bits in protobuf; it drops any further bits. */
  private tag(at: number, end: number): number {
    const tag = this.varint(at, end);
    const bytes = this.next - at;
    if (tag >= 2 ** 32 || (bytes > 1 && tag < 2 ** (7 * (bytes - 1))))
      throw new Malformed(`the tag at byte ${at} is too long`);
    return tag;
  }

  private varint(at: number, end: number): number {
    let low = 0;
    let high = 0;
    for (let k = 0; k < 10; k++) {
      const byte = this.data[at + k];
      if (byte === undefined || at + k >= end) throw new Malformed(`it ends at byte ${at + k}, inside a number`);
      const bits = byte & 0x7f;
      if (k < 4) low += bits * 2 ** (7 * k);
      else high += bits * 2 ** (7 * k - 28); // in units of 2^28
      if (byte < 0x80) {
        this.next = at + k + 1;
        return this.whole(low, high, at);
      }
    }
    throw new Malformed(`a number at byte ${at} does not end`);
  }

  /** The number `low + 2^28 high`; the parts have 28 and 42 bits. */
  private whole(low: number, high: number, at: number): number {
    this.low = low + (high % 16) * 2 ** 28;
    this.high = Math.floor(high / 16);
    if (this.high >= OVER_64_BITS) throw new Malformed(`a number at byte ${at} has more than 64 bits`);
    return this.low + this.high * 2 ** 32;
  }

  /** The bytes as UTF-8. */
  text(start: number, end: number): string {
    try {
      return UTF8.decode(this.data.subarray(start, end));
    } catch {
      throw new Malformed(`the text at byte ${start} is not UTF-8`);
    }
  }
}

/** Whether a varint is a signed 32-bit number. */
export function isNarrow(field: Field): boolean {
  return field.low < 2 ** 31 ? field.high === 0 : field.high === 0xffffffff;
}

/** A text, bytes or message field as it is written: its pieces in order. */
export function lengthDelimited(number: number, content: readonly Uint8Array[]): Uint8Array[] {
  const length = content.reduce((sum, piece) => sum + piece.length, 0);
  return [varintBytes(number * 8 + BYTES), varintBytes(length), ...content];
}

function varintBytes(value: number): Uint8Array {
  const found: number[] = [];
  for (; value > 0x7f; value = Math.floor(value / 128)) found.push((value % 128) | 0x80);
  return Uint8Array.from([...found, value]);
}
