/** From maps of scores to the mask of an image, as docs/reference/runtime.md ("Masks") specifies it to the last bit. */
import { UNKNOWN } from "./generated/metadata.js";
import type { ScoreKind } from "./generated/spec.js";
import { placed } from "./prepare.js";
import type { Preprocessing } from "./preprocessing.js";
import { resizeByRow, type Rows } from "./resize.js";

/** The class of each pixel of an image, row by row. */
export interface Mask {
  /** Numbers of classes, of which `description.labels` has the names; 255 where the network did not see the image. */
  readonly data: Uint8Array;
  readonly width: number;
  readonly height: number;
}

/** Scores of one image by pixel, `[height, width, maps]`. */
interface Maps {
  data: Float32Array;
  height: number;
  width: number;
  maps: number;
}

/** The number of maps in scores `[N, H, W]` or `[N, maps, H, W]`, with the layout NHWC `[N, H, W, maps]`. */
export function mapsOf<T>(dims: readonly T[], p: Preprocessing | null): T | 1 {
  return dims.length === 3 ? 1 : (dims[p?.layout === "NHWC" ? 3 : 1] as T);
}

/** The score of one map from which a pixel is foreground. */
export function levelOf(threshold: number, kind: ScoreKind | ""): number {
  return Math.fround(kind === "logits" ? Math.log(threshold / (1 - threshold)) : threshold);
}

/**
 * The mask of an image.
 *
 * @param found the scores of one image, of dims as in `mapsOf`.
 * @param p how the image became the input; null leaves the maps as they are.
 * @param size height and width of the image.
 */
export function maskOf(
  found: { data: Float32Array; dims: readonly number[] },
  p: Preprocessing | null,
  size: readonly [number, number],
  level: number,
): Mask {
  const maps = byPixel(found, p);
  if (!p) return { ...decided(maps, maps.height, maps.width, level) };
  const whole = maps.height === p.height && maps.width === p.width ? maps : resized(maps, p.height, p.width);
  const part = placed(size[0], size[1], p);
  const down = (p.height - part.innerHeight) >> 1;
  const right = (p.width - part.innerWidth) >> 1;
  const inner = cut(whole, down, right, part.innerHeight, part.innerWidth);
  const seen = decided(inner, part.height, part.width, level);
  const data = new Uint8Array(size[0] * size[1]).fill(UNKNOWN);
  for (let y = 0; y < part.height; y++) {
    data.set(seen.data.subarray(y * part.width, (y + 1) * part.width), (part.top + y) * size[1] + part.left);
  }
  return { data, width: size[1], height: size[0] };
}

function byPixel(found: { data: Float32Array; dims: readonly number[] }, p: Preprocessing | null): Maps {
  const maps = mapsOf(found.dims, p);
  const last = found.dims.length === 4 && p?.layout === "NHWC";
  const [height, width] = (last ? found.dims.slice(1, 3) : found.dims.slice(-2)) as [number, number];
  if (last || maps === 1) return { data: found.data, height, width, maps };
  const data = new Float32Array(found.data.length);
  const area = height * width;
  for (let k = 0; k < maps; k++) {
    for (let i = 0; i < area; i++) data[i * maps + k] = found.data[k * area + i] as number;
  }
  return { data, height, width, maps };
}

function cut(from: Maps, top: number, left: number, height: number, width: number): Maps {
  const { maps } = from;
  const data = new Float32Array(height * width * maps);
  for (let y = 0; y < height; y++) {
    const start = ((top + y) * from.width + left) * maps;
    data.set(from.data.subarray(start, start + width * maps), y * width * maps);
  }
  return { data, height, width, maps };
}

function rowsOf({ data, width, maps }: Maps): Rows {
  return (row) => data.subarray(row * width * maps, (row + 1) * width * maps);
}

function resized(from: Maps, height: number, width: number): Maps {
  const data = new Float32Array(height * width * from.maps);
  resizeByRow(rowsOf(from), from.height, from.width, from.maps, height, width, (y, row) =>
    data.set(row, y * width * from.maps),
  );
  return { data, height, width, maps: from.maps };
}

/** The class of every pixel after resizing, row by row. */
function decided(from: Maps, height: number, width: number, level: number): Mask {
  const { maps } = from;
  const data = new Uint8Array(height * width);
  resizeByRow(rowsOf(from), from.height, from.width, maps, height, width, (y, row) => {
    for (let x = 0; x < width; x++) data[y * width + x] = classOf(row, x * maps, maps, level);
  });
  return { data, width, height };
}

/** The class with the largest score, the first of equal ones; of one map whether the score reaches the level. */
function classOf(row: Float32Array, start: number, maps: number, level: number): number {
  if (maps === 1) return (row[start] as number) >= level ? 1 : 0;
  let best = 0;
  for (let k = 1; k < maps; k++) if ((row[start + k] as number) > (row[start + best] as number)) best = k;
  return best;
}
