/** How pixels become a model's input, as stated in the file. */
import { Malformed } from "./errors.js";
import type { preprocessingFields } from "./generated/metadata.js";
import {
  LAYOUT_WORDS,
  ORDER_WORDS,
  PER_IMAGE_WORDS,
  RESIZE_WORDS,
  type Layout,
  type Order,
  type PerImage,
  type Resize,
} from "./generated/spec.js";
import type { Limits } from "./limits.js";
import { short } from "./text.js";

/** How pixels become the input tensor: the fields of docs/reference/metadata.md. */
export interface Preprocessing {
  /** Input size in pixels. */
  readonly height: number;
  readonly width: number;
  /** 1 (grey) or 3 (RGB); with other counts only raw pixels are accepted. */
  readonly channels: number;
  /** Factor applied to pixels, which range from 0 to 255. */
  readonly scale: number;
  /** One number, or one per channel; `(pixel * scale - mean) / std`. */
  readonly mean: readonly number[];
  readonly std: readonly number[];
  readonly resize: Resize;
  readonly perImage: PerImage;
  /** `NHWC` if the channels come last in the input. */
  readonly layout: Layout;
  /** The order of the input's channels; images are RGB regardless. */
  readonly order: Order;
}

/**
 * The preprocessing stated in a file's metadata.
 *
 * @throws Malformed if it contradicts itself or exceeds the limits.
 */
export function checkedPreprocessing(declared: ReturnType<typeof preprocessingFields>, limits: Limits): Preprocessing {
  const { per_image, ...found } = declared;
  const p: Preprocessing = {
    ...found,
    resize: oneOf(RESIZE_WORDS, found.resize, "resize rule"),
    perImage: oneOf(PER_IMAGE_WORDS, per_image, "per_image"),
    layout: oneOf(LAYOUT_WORDS, found.layout, "layout"),
    order: oneOf(ORDER_WORDS, found.order, "order"),
  };
  checkSize(p, limits);
  checkNumbers(p);
  if (p.order === "BGR" && p.channels !== 3) throw new Malformed("order 'BGR' is for three channels");
  return p;
}

function checkSize(p: Preprocessing, limits: Limits): void {
  const size = `${p.channels}x${p.height}x${p.width}`;
  if (Math.min(p.height, p.width, p.channels) < 1) throw new Malformed(`input size ${size} is not positive`);
  if (Math.max(p.height, p.width) > limits.imageSide || p.height * p.width * p.channels > limits.inputValues) {
    throw new Malformed(
      `input size ${size} is over ${limits.inputValues} values or ${limits.imageSide} pixels a side`,
      true,
    );
  }
}

function checkNumbers(p: Preprocessing): void {
  if (![p.scale, ...p.mean, ...p.std].every(Number.isFinite) || p.std.includes(0)) {
    throw new Malformed("scale, mean and std must be finite numbers, and std not zero");
  }
  for (const [name, values] of [
    ["mean", p.mean],
    ["std", p.std],
  ] as const) {
    if (values.length !== 1 && values.length !== p.channels) {
      throw new Malformed(`${name} has ${values.length} values for ${p.channels} channels`);
    }
  }
  if (p.perImage === "standardize" && (p.mean.some((v) => v !== 0) || p.std.some((v) => v !== 1))) {
    throw new Malformed("an image that is standardized by itself cannot have another mean and std");
  }
}

/** The text as one of the known words. */
export function oneOf<T extends string>(known: readonly T[], found: string, what: string): T {
  const word = known.find((each) => each === found);
  if (word === undefined) throw new Malformed(`${what} '${short(found)}', known: ${known.filter(Boolean).join(", ")}`);
  return word;
}

/** The mean and the deviation of each channel. */
export function perChannel(p: Preprocessing): { mean: number[]; std: number[] } {
  const each = (values: readonly number[]) =>
    Array.from({ length: p.channels }, (_, c) => values[values.length === 1 ? 0 : c] ?? 0);
  return { mean: each(p.mean), std: each(p.std) };
}

/** The lowest and the highest value that preprocessing can produce from pixels. */
export function declaredRange(p: Preprocessing): [number, number] {
  if (p.perImage === "standardize") {
    const most = Math.sqrt(p.height * p.width * p.channels);
    return [-most, most];
  }
  const { mean, std } = perChannel(p);
  const ends = [0, 255].flatMap((level) => mean.map((m, c) => (level * p.scale - m) / (std[c] ?? 1)));
  return [ends.reduce((a, b) => Math.min(a, b)), ends.reduce((a, b) => Math.max(a, b))];
}
