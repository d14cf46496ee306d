/** The mask of a segmentation as a picture over the image, and the share of each class. */
import type { Description, Mask } from "capsedge";
import { UNKNOWN } from "../generated/spec.js";
import type { Colour } from "./paint.js";

/** A class in a mask. */
export interface Area {
  label: string;
  /** Of the pixels that the network saw. */
  share: number;
  colour: Colour;
}

/** The colour of a class, that of PASCAL VOC: the bits of its number, spread over the channels. */
function colourOf(index: number): Colour {
  const colour: [number, number, number] = [0, 0, 0];
  for (let bit = 0; bit < 8; bit++) colour[bit % 3] = (colour[bit % 3] ?? 0) | (((index >> bit) & 1) << (7 - Math.floor(bit / 3)));
  return colour;
}

/** The mask as a picture to lay over the image: half its colours, class 0 transparent, unknown dark. */
export function maskPicture({ data, width, height }: Mask): OffscreenCanvas {
  const canvas = new OffscreenCanvas(width, height);
  const image = new ImageData(width, height);
  for (const [k, index] of data.entries()) {
    if (index === 0) continue;
    const [r, g, b] = index === UNKNOWN ? [0, 0, 0] : colourOf(index);
    image.data.set([r, g, b, 128], 4 * k);
  }
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

/** The classes in a mask, largest first. */
export function areasOf({ data }: Mask, { labels }: Description): Area[] {
  const pixels = new Uint32Array(UNKNOWN);
  for (const index of data) if (index !== UNKNOWN) pixels[index] = (pixels[index] ?? 0) + 1;
  const seen = Math.max(1, pixels.reduce((sum, count) => sum + count, 0));
  return [...pixels.entries()]
    .filter(([, count]) => count)
    .map(([index, count]) => ({ label: labels[index] ?? String(index), share: count / seen, colour: colourOf(index) }))
    .sort((a, b) => b.share - a.share);
}

/** A share for display. */
export function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}
