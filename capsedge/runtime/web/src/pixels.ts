/** Turn the caller's images into pixels: raw ones, or ones that the browser decodes and draws. */
import { checkArgument, valueText } from "./arguments.js";
import { CapsedgeError, messageOf } from "./errors.js";
import type { Limits } from "./limits.js";
import type { Preprocessing } from "./preprocessing.js";
import { grouped } from "./text.js";

/** An image as numbers: `ImageData`, or rows of `width * channels` values without gaps. */
export interface RawImage {
  /** The values: 0..255, 0..65535, or floats from 0 to 1. */
  data: Uint8Array | Uint8ClampedArray | Uint16Array | Float32Array;
  width: number;
  height: number;
  /** 1 (grey), 2 (grey and alpha), 3 (RGB), 4 (RGB and alpha), or as many as the model takes; 4 if omitted. */
  channels?: number;
}

/** What `predict` and `prepare` accept; a `Blob` holds a PNG or JPEG file, which the browser decodes. */
export type ImageSource =
  RawImage | ImageData | HTMLImageElement | HTMLCanvasElement | HTMLVideoElement | ImageBitmap | OffscreenCanvas | Blob;

/** Checked pixels `[height, width, channels]`. */
export interface Pixels {
  data: RawImage["data"];
  width: number;
  height: number;
  channels: number;
  /** The divisor that turns a value into a level from 0 to 255; 1/255 for floats from 0 to 1. */
  divisor: number;
}

const RAW_KINDS = [Uint8Array, Uint8ClampedArray, Uint16Array, Float32Array] as const;
type Drawable = Exclude<ImageSource, RawImage | Blob>;

/**
 * The pixels of an image of any kind.
 *
 * @throws CapsedgeError `input` if it is not an image or does not fit the model, `limit` if it is too large.
 */
export async function pixelsOf(image: ImageSource, p: Preprocessing, limits: Limits): Promise<Pixels> {
  if (typeof Blob === "function" && image instanceof Blob) {
    const bitmap = await decoded(image, limits);
    try {
      return checkedPixels(drawn(bitmap, limits), p, limits);
    } finally {
      bitmap.close();
    }
  }
  return checkedPixels(isDrawable(image) ? drawn(image, limits) : image, p, limits);
}

function checkedPixels(image: unknown, p: Preprocessing, limits: Limits): Pixels {
  const { data, width, height, channels } = checkedRaw(image);
  checkSize(width, height, limits);
  const allowed = p.channels === 1 || p.channels === 3 ? [1, 2, 3, 4] : [p.channels];
  if (!allowed.includes(channels)) {
    throw new CapsedgeError(
      "input",
      `The image has ${channels} channels; the model takes ${allowed.join(", ")}.`,
      "Remove the channels that the model does not use.",
    );
  }
  if (data.length !== width * height * channels) {
    throw new CapsedgeError(
      "input",
      `The image has ${grouped(data.length)} values; ${width} x ${height} pixels of ${channels} channels have ${grouped(width * height * channels)}.`,
      "Pass rows without gaps, and state channels.",
    );
  }
  return { data, width, height, channels, divisor: divisorOf(data) };
}

/** An image as numbers, whose members have the right types. */
function checkedRaw(image: unknown): Required<RawImage> {
  const found = typeof image === "object" && image !== null && "data" in image ? (image as Partial<RawImage>) : null;
  if (!found) {
    const pixels = Array.isArray(image) || ArrayBuffer.isView(image) || image instanceof ArrayBuffer;
    throw new CapsedgeError(
      "input",
      `The image is ${valueText(image)}.`,
      pixels
        ? "Pass pixels with their size, as { data, width, height, channels }."
        : "Images are ImageData, image and canvas elements, ImageBitmap, Blob, or { data, width, height, channels }.",
    );
  }
  const { data, width, height, channels = 4 } = found;
  if (!RAW_KINDS.some((kind) => data instanceof kind)) {
    throw new CapsedgeError(
      "input",
      `The data of the image are ${valueText(data)}.`,
      data !== null && typeof data === "object"
        ? "Pass new Uint8Array(data) for levels from 0 to 255, or new Float32Array(data) for values from 0 to 1."
        : `Pass a ${RAW_KINDS.map((kind) => kind.name).join(", ")}.`,
    );
  }
  checkArgument("channels", channels);
  for (const [name, side] of Object.entries({ width, height })) {
    // Sides over the limit have an error of their own.
    if (!Number.isInteger(side) || (side as number) < 1) checkArgument(name as "width", side);
  }
  return { data, width, height, channels } as Required<RawImage>;
}

function divisorOf(data: RawImage["data"]): number {
  if (data instanceof Uint16Array) return 257;
  if (!(data instanceof Float32Array)) return 1;
  if (!data.every((value) => value >= 0 && value <= 1)) {
    throw new CapsedgeError(
      "input",
      "The image has values outside 0 to 1, or NaN.",
      "Floating-point pixels go from 0 to 1; pass levels from 0 to 255 as a Uint8Array.",
    );
  }
  return 1 / 255;
}

function checkSize(width: number, height: number, limits: Limits): void {
  if (![width, height].every((side) => Number.isSafeInteger(side) && side > 0)) {
    throw new CapsedgeError(
      "input",
      `The image has ${String(width)} x ${String(height)} pixels.`,
      "Wait until it is loaded.",
    );
  }
  if (Math.max(width, height) > limits.imageSide || width * height > limits.imagePixels) {
    throw new CapsedgeError(
      "limit",
      `The image has ${grouped(width)} x ${grouped(height)} pixels; the limit is ${grouped(limits.imagePixels)}, and ${grouped(limits.imageSide)} a side.`,
      "Scale it down.",
    );
  }
}

function isDrawable(image: unknown): image is Drawable {
  const names = ["HTMLImageElement", "HTMLCanvasElement", "HTMLVideoElement", "ImageBitmap", "OffscreenCanvas"];
  return names.some((name) => {
    const kind: unknown = Reflect.get(globalThis, name);
    return typeof kind === "function" && image instanceof kind;
  });
}

const PNG = [0x89, 0x50, 0x4e, 0x47];
const JPEG = [0xff, 0xd8, 0xff];
const HEAD = 33; // a PNG's signature and header

/** A PNG or JPEG file decoded by the browser: oriented by EXIF, without colour conversion. */
async function decoded(file: Blob, limits: Limits): Promise<ImageBitmap> {
  if (file.size > limits.imageFileBytes) {
    throw new CapsedgeError(
      "limit",
      `The image file has ${grouped(file.size)} bytes; the limit is ${grouped(limits.imageFileBytes)}.`,
      "Scale it down.",
    );
  }
  const head = new Uint8Array(await file.slice(0, HEAD).arrayBuffer());
  const isPng = PNG.every((byte, k) => head[k] === byte);
  if (!isPng && !JPEG.every((byte, k) => head[k] === byte)) {
    throw new CapsedgeError("input", "The file is neither a PNG nor a JPEG image.", "Convert it.");
  }
  if (isPng && head.length === HEAD) {
    const view = new DataView(head.buffer);
    checkSize(view.getUint32(16), view.getUint32(20), limits); // before it is decoded
  }
  if (typeof createImageBitmap !== "function") {
    throw new CapsedgeError(
      "input",
      "Image files can be decoded only in a browser.",
      "Decode it, and pass { data, width, height, channels }.",
    );
  }
  try {
    return await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch (error) {
    throw new CapsedgeError(
      "input",
      `The browser cannot decode the image: ${messageOf(error)}`,
      "Check that the file is complete.",
      { cause: error },
    );
  }
}

/** The RGBA pixels of anything that can be drawn. */
function drawn(image: Drawable, limits: Limits): ImageData {
  const [width, height] = sizeOf(image);
  checkSize(width, height, limits);
  const canvas = typeof OffscreenCanvas === "function" ? new OffscreenCanvas(width, height) : elementOf(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true, colorSpace: "srgb" }) as
    CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D | null;
  if (!context)
    throw new CapsedgeError(
      "input",
      "The browser provides no canvas to read the image.",
      "Close other pages, and try again.",
    );
  context.drawImage(image, 0, 0);
  try {
    return context.getImageData(0, 0, width, height);
  } catch (error) {
    throw new CapsedgeError(
      "input",
      `The page may not read the image: ${messageOf(error)}`,
      "Serve it from the page's own origin, or with crossorigin and CORS headers.",
      { cause: error },
    );
  }
}

function elementOf(width: number, height: number): HTMLCanvasElement {
  return Object.assign(document.createElement("canvas"), { width, height });
}

function sizeOf(image: Drawable): [number, number] {
  if ("naturalWidth" in image) return [image.naturalWidth, image.naturalHeight];
  if ("videoWidth" in image) return [image.videoWidth, image.videoHeight];
  return [image.width, image.height];
}
