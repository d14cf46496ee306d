/** Whether there is anything to see in an image, and what to try: docs/reference/metadata.md ("Nothing to see"). */
import type { Preprocessing } from "./preprocessing.js";
import type { TypicalInput } from "./declared-fields.js";
import { CONFIDENT } from "./generated/metadata.js";

/** Five numbers of one prepared image, in float64. */
export interface Measurements {
  /** Standard deviation of the values. */
  contrast: number;
  /** Their mean. */
  level: number;
  /** Mean squared difference of neighbours, divided by twice the variance (von Neumann 1941, in two dimensions). */
  roughness: number;
  /** Mean of the outermost pixels minus the mean of all, in standard deviations. */
  frameLevel: number;
  /** Standard deviation of the outermost pixels, relative to that of all. */
  frameContrast: number;
}

// In order of comparison: what is wrong with an image below or above its range.
const REASONS = {
  contrast: ["less contrast", "more contrast"],
  roughness: ["smoother content", "rougher content"],
  frameLevel: ["a darker frame", "a lighter frame"],
  frameContrast: ["a plainer frame", "a busier frame"],
  level: ["a lower mean", "a higher mean"],
} as const;
type Name = keyof typeof REASONS;

const INVERT = "mostly light, and the answer is not confident: try invert: true";
const KEEP = "mostly light once inverted, and the answer is not confident: try without invert";

/** The measurements of a prepared image; sums go from the first value in memory to the last. */
export function measure(image: Float32Array, p: Preprocessing): Measurements {
  const { mean: level, deviation: contrast, variance } = moments(image);
  if (contrast === 0) return { contrast, level, roughness: 0, frameLevel: 0, frameContrast: 0 };
  const steps = squaredSteps(image, p);
  const frame = moments(framed(image, p));
  return {
    contrast,
    level,
    roughness: steps.sum / steps.count / (2 * variance),
    frameLevel: (frame.mean - level) / contrast,
    frameContrast: frame.deviation / contrast,
  };
}

/** The first measurement outside its range, in words; null if there is something to see. */
export function atypicalReason(typical: TypicalInput, found: Measurements): string | null {
  for (const name of Object.keys(REASONS) as Name[]) {
    if (within(typical, name, found[name])) continue;
    const [below, above] = REASONS[name];
    return `${found[name] < typical[name][0] ? below : above} than in any training image`;
  }
  return null;
}

/**
 * What to try with a prepared grey image whose colours may be inverted; null if there is no advice.
 *
 * @param score score of the best class; 0 if there is nothing to see in the image.
 */
export function advice(
  image: Float32Array,
  p: Preprocessing,
  score: number,
  typical: TypicalInput | null,
  inverted: boolean,
): string | null {
  if (score >= CONFIDENT || p.channels !== 1 || !mostlyLight(image)) return null;
  const found = measure(image, p);
  const other = typical === null ? found.frameLevel > 0 : fitsInverted(typical, found);
  return other ? (inverted ? KEEP : INVERT) : null;
}

function fitsInverted(typical: TypicalInput, found: Measurements): boolean {
  const has = (name: Name, value: number) => within(typical, name, value);
  const same =
    has("contrast", found.contrast) && has("roughness", found.roughness) && has("frameLevel", -found.frameLevel);
  return same && !has("frameLevel", found.frameLevel);
}

function mostlyLight(image: Float32Array): boolean {
  const middle = (image.reduce((a, b) => Math.min(a, b)) + image.reduce((a, b) => Math.max(a, b))) / 2;
  let above = 0;
  for (const value of image) if (value > middle) above++;
  return 2 * above > image.length;
}

function within(typical: TypicalInput, name: Name, value: number): boolean {
  const [low, high] = typical[name];
  return low <= value && value <= high;
}

function moments(values: ArrayLike<number>): { mean: number; variance: number; deviation: number } {
  let sum = 0;
  for (let k = 0; k < values.length; k++) sum += values[k] as number;
  const mean = sum / values.length;
  let squares = 0;
  for (let k = 0; k < values.length; k++) squares += ((values[k] as number) - mean) * ((values[k] as number) - mean);
  const variance = squares / values.length;
  return { mean, variance, deviation: Math.sqrt(variance) };
}

/** The distances in memory from a value to its neighbours. */
function strides(p: Preprocessing): { row: number; column: number } {
  return p.layout === "NCHW" ? { row: p.width, column: 1 } : { row: p.width * p.channels, column: p.channels };
}

/** Sum and number of the squared differences of horizontal, then of vertical neighbours, in memory order. */
function squaredSteps(image: Float32Array, p: Preprocessing): { sum: number; count: number } {
  const { row, column } = strides(p);
  let sum = 0;
  let count = 0;
  for (const [step, isLast] of [
    [column, (_: number, x: number) => x === p.width - 1],
    [row, (y: number) => y === p.height - 1],
  ] as const) {
    for (const { y, x, at } of places(p)) {
      if (isLast(y, x)) continue;
      const d = (image[at + step] as number) - (image[at] as number);
      sum += d * d;
      count++;
    }
  }
  return { sum, count };
}

/** The values of the first and last row and column, in memory order. */
function framed(image: Float32Array, p: Preprocessing): number[] {
  const found: number[] = [];
  for (const { y, x, at } of places(p)) {
    if (y === 0 || x === 0 || y === p.height - 1 || x === p.width - 1) found.push(image[at] as number);
  }
  return found;
}

/** Row and column of every value, in memory order. */
function* places(p: Preprocessing): Generator<{ y: number; x: number; at: number }> {
  const { row, column } = strides(p);
  const count = p.height * p.width * p.channels;
  for (let at = 0; at < count; at++) {
    yield { y: Math.floor(at / row) % p.height, x: Math.floor((at % row) / column), at };
  }
}
