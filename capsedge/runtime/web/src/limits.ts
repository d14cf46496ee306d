import { CapsedgeError } from "./errors.js";

const KIB = 2 ** 10;
const MIB = 2 ** 20;

/** Limits on everything that comes from a file, those of docs/reference/limits.md; `load` takes smaller ones. */
export interface Limits {
  /** Bytes of one ONNX file; protobuf reads no larger one. */
  fileBytes: number;
  /** Nodes of one file, functions and nested graphs included. */
  nodes: number;
  /** Protobuf messages of one file. */
  messages: number;
  /** Protobuf fields of one file. */
  fields: number;
  /** Characters of the `capsedge.*` properties of one file. */
  metadataBytes: number;
  /** Characters of the typical input. */
  typicalInputBytes: number;
  /** Characters of the description of a cascade. */
  cascadeBytes: number;
  /** Characters of the description of a trace. */
  traceBytes: number;
  /** Bytes of the values of one trace. */
  tracedBytes: number;
  /** Bytes of one PNG or JPEG file. */
  imageFileBytes: number;
  /** Pixels of one image. */
  imagePixels: number;
  /** Pixels along one side of an image. */
  imageSide: number;
  /** Values of one input image of a model. */
  inputValues: number;
  /** Bytes of the inputs of one run, and of its outputs, as far as the file fixes them. */
  runBytes: number;
}

/** The limits where `load` is given none. */
export const LIMITS: Readonly<Limits> = Object.freeze({
  fileBytes: 2 ** 31 - 1,
  nodes: 100_000,
  messages: 500_000,
  fields: 4_000_000,
  metadataBytes: 8 * MIB,
  typicalInputBytes: 4 * KIB,
  cascadeBytes: 16 * KIB,
  traceBytes: MIB,
  tracedBytes: 2 ** 30,
  imageFileBytes: 128 * MIB,
  imagePixels: 2 ** 26,
  imageSide: 32768,
  inputValues: 2 ** 26,
  runBytes: 256 * MIB,
});

/**
 * The limits, with smaller ones in place of some.
 *
 * @throws CapsedgeError `input` where one is unknown, no whole number, or larger.
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

// Fixed: what they bound is small, and nobody needs less.
export const MESSAGE_DEPTH = 100;
export const JSON_VALUES = 2_000_000;
export const JSON_DEPTH = 32;
export const ITERATIONS = 100;
export const LAYERS = 512;
export const WIDTH = 2 ** 16;
export const NAME_CHARACTERS = 1024;
export const ORIGIN_CHARACTERS = 4096;
export const ORIGIN_ENTRIES = 256;
export const DIMENSIONS = 64;
