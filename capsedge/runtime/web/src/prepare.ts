/** From pixels to the input of a model, as docs/reference/runtime.md ("Images") specifies it to the last bit. */
import type { Pixels } from "./pixels.js";
import { perChannel, type Preprocessing } from "./preprocessing.js";
import { resize } from "./resize.js";

const round = Math.fround;
// Luma of ITU-R BT.601 in 1/65536: the weights sum to one exactly, so a grey RGB pixel keeps its value.
const RED = 19595;
const GREEN = 38470;
const BLUE = 7471;
const LUMA_UNIT = 65536;

/**
 * Turn one image into the input of a model.
 *
 * @param pixels an image that `pixelsOf` has checked.
 * @param invert for dark ink on a light background.
 * @returns `[C, H, W]`, or `[H, W, C]` if the preprocessing has that layout.
 */
export function prepare(pixels: Pixels, p: Preprocessing, invert: boolean): Float32Array {
  const { top, left, height, width, innerHeight, innerWidth } = placed(pixels.height, pixels.width, p);
  const rows = (row: number) => levels(pixels, top + row, left, width, p.channels, invert);
  const inner = resize(rows, height, width, p.channels, innerHeight, innerWidth);
  return normalized(planes(inner, innerHeight, innerWidth, p), p);
}

/** The part of the image to use, and its size in the input, where it is centred. */
export function placed(height: number, width: number, p: Preprocessing) {
  const whole = { top: 0, left: 0, height, width, innerHeight: p.height, innerWidth: p.width };
  if (p.resize === "pad") {
    const [innerHeight, innerWidth] = fitted(height, width, p.height, p.width);
    return { ...whole, innerHeight, innerWidth };
  }
  if (p.resize === "stretch") return whole;
  const crop = p.resize === "crop";
  const part: [number, number] = crop
    ? fitted(p.height, p.width, height, width)
    : [Math.min(height, p.height), Math.min(width, p.width)];
  const top = (height - part[0]) >> 1;
  const left = (width - part[1]) >> 1;
  const [innerHeight, innerWidth] = crop ? [p.height, p.width] : part;
  return { top, left, height: part[0], width: part[1], innerHeight, innerWidth };
}

/** Largest size with the image's aspect ratio within the target; halves round up. */
function fitted(height: number, width: number, targetHeight: number, targetWidth: number): [number, number] {
  if (height * targetWidth >= width * targetHeight) {
    return [targetHeight, Math.max(1, Math.floor((2 * width * targetHeight + height) / (2 * height)))];
  }
  return [Math.max(1, Math.floor((2 * height * targetWidth + width) / (2 * width))), targetWidth];
}

/** A row of pixels as levels 0..255 in the model's channels: inverted, on black, grey or RGB. */
function levels(
  pixels: Pixels,
  row: number,
  left: number,
  width: number,
  wanted: number,
  invert: boolean,
): Float32Array {
  const { channels } = pixels;
  const values = scaled(pixels, (row * pixels.width + left) * channels, width * channels);
  const hasAlpha = channels !== wanted && (channels === 2 || channels === 4);
  if (invert) turn(values, channels, hasAlpha);
  const colours = hasAlpha ? onBlack(values, channels) : values;
  const count = hasAlpha ? channels - 1 : channels;
  if (count === wanted) return colours;
  return count === 1 ? repeated(colours, wanted) : luma(colours);
}

/** Values as levels 0..255 in float32. */
function scaled({ data, divisor }: Pixels, start: number, count: number): Float32Array {
  const values = new Float32Array(count);
  values.set(data.subarray(start, start + count));
  if (divisor > 1) for (let k = 0; k < count; k++) values[k] = (values[k] as number) / divisor;
  if (divisor < 1) for (let k = 0; k < count; k++) values[k] = (values[k] as number) * 255;
  return values;
}

/** Invert in place, except for the alpha channel. */
function turn(values: Float32Array, channels: number, hasAlpha: boolean): void {
  const alpha = hasAlpha ? channels - 1 : channels;
  for (let k = 0; k < values.length; k++) if (k % channels !== alpha) values[k] = 255 - (values[k] as number);
}

/** Remove the alpha channel after multiplying the others by it. */
function onBlack(values: Float32Array, channels: number): Float32Array {
  const colours = channels - 1;
  const result = new Float32Array((values.length / channels) * colours);
  for (let from = 0, to = 0; from < values.length; from += channels, to += colours) {
    const cover = round((values[from + colours] as number) / 255);
    for (let c = 0; c < colours; c++) result[to + c] = (values[from + c] as number) * cover;
  }
  return result;
}

function repeated(grey: Float32Array, wanted: number): Float32Array {
  const result = new Float32Array(grey.length * wanted);
  for (let k = 0; k < result.length; k++) result[k] = grey[Math.floor(k / wanted)] as number;
  return result;
}

/** RGB to grey. */
function luma(rgb: Float32Array): Float32Array {
  const result = new Float32Array(rgb.length / 3);
  for (let from = 0, to = 0; from < rgb.length; from += 3, to++) {
    const red = round(RED * (rgb[from] as number));
    const green = round(GREEN * (rgb[from + 1] as number));
    const blue = round(BLUE * (rgb[from + 2] as number));
    result[to] = round(round(red + green) + blue) / LUMA_UNIT;
  }
  return result;
}

/** `[innerHeight, innerWidth, C]` as planes `[C, H, W]`, centred on black, in the input's channel order. */
function planes(inner: Float32Array, innerHeight: number, innerWidth: number, p: Preprocessing): Float32Array {
  const { channels, height, width } = p;
  const result = new Float32Array(channels * height * width);
  const top = (height - innerHeight) >> 1;
  const left = (width - innerWidth) >> 1;
  for (let c = 0; c < channels; c++) {
    const plane = p.order === "BGR" ? channels - 1 - c : c;
    for (let y = 0; y < innerHeight; y++) {
      for (let x = 0; x < innerWidth; x++) {
        result[(plane * height + top + y) * width + left + x] = inner[(y * innerWidth + x) * channels + c] as number;
      }
    }
  }
  return result;
}

function normalized(image: Float32Array, p: Preprocessing): Float32Array {
  if (p.perImage === "min-max") stretch(image);
  const { mean, std } = perChannel(p);
  const scale = round(p.scale);
  const size = p.height * p.width;
  for (let c = 0; c < p.channels; c++) {
    const m = round(mean[c] ?? 0);
    const s = round(std[c] ?? 1);
    for (let k = c * size; k < (c + 1) * size; k++) image[k] = round(round((image[k] as number) * scale) - m) / s;
  }
  if (p.perImage === "standardize") standardize(image);
  return p.layout === "NHWC" ? channelsLast(image, p.channels, size) : image;
}

/** Scale to the levels from 0 to 255. */
function stretch(image: Float32Array): void {
  let low = Infinity;
  let high = -Infinity;
  for (const value of image) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const span = high > low ? round(high - low) : 1;
  for (let k = 0; k < image.length; k++) image[k] = round(round((image[k] as number) - low) / span) * 255;
}

/** Scale to mean 0 and standard deviation 1, in float64, summing from the first value to the last. */
function standardize(image: Float32Array): void {
  const count = image.length;
  let sum = 0;
  for (const value of image) sum += value;
  const mean = sum / count;
  let squares = 0;
  for (const value of image) squares += (value - mean) * (value - mean);
  const deviation = Math.max(Math.sqrt(squares / count), 1 / Math.sqrt(count));
  for (let k = 0; k < count; k++) image[k] = ((image[k] as number) - mean) / deviation;
}

function channelsLast(image: Float32Array, channels: number, size: number): Float32Array {
  const result = new Float32Array(image.length);
  for (let c = 0; c < channels; c++) {
    for (let k = 0; k < size; k++) result[k * channels + c] = image[c * size + k] as number;
  }
  return result;
}
