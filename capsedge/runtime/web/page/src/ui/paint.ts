/** Draw arrays as pictures in the page's colours. */

export type Colour = readonly [number, number, number];

/** The style sheet's current colours, which differ between light and dark mode. */
export interface Palette {
  paper: Colour;
  ink: Colour;
  accent: Colour;
}

const reader = new OffscreenCanvas(1, 1).getContext("2d");

/** A colour from the style sheet, in whatever notation it is written. */
function colourOf(style: CSSStyleDeclaration, name: string): Colour {
  if (reader) reader.fillStyle = style.getPropertyValue(name);
  const found = parseInt(String(reader?.fillStyle).slice(1), 16); // a canvas returns it as #rrggbb
  return [found >> 16, (found >> 8) & 255, found & 255];
}

export function palette(): Palette {
  const style = getComputedStyle(document.documentElement);
  return { paper: colourOf(style, "--paper"), ink: colourOf(style, "--ink"), accent: colourOf(style, "--accent") };
}

/** Intensities from 0 to 1 of one picture, and the colour for 1. */
export interface Layer {
  values: Float32Array;
  colour: Colour;
}

/** Paint layers over paper, one canvas pixel for each value; the style sheet scales it. */
export function paintLayers(canvas: HTMLCanvasElement, height: number, width: number, paper: Colour, layers: readonly Layer[]): void {
  paintPixels(canvas, height, width, (k) =>
    layers.reduce<Colour>((below, { values, colour }) => mixed(below, colour, values[k] ?? 0), paper),
  );
}

/** Paint `[C, H, W]` with values from 0 to 1: one channel in a colour over paper, three as RGB. */
export function paintPicture(canvas: HTMLCanvasElement, data: Float32Array, dims: readonly number[], paper: Colour, colour: Colour): void {
  const [channels = 1, height = 1, width = 1] = dims;
  const size = height * width;
  if (channels < 3) {
    paintLayers(canvas, height, width, paper, [{ values: data, colour }]);
    return;
  }
  paintPixels(canvas, height, width, (k) => [level(data[k]), level(data[size + k]), level(data[2 * size + k])]);
}

function level(value: number | undefined): number {
  return 255 * Math.min(1, Math.max(0, value ?? 0));
}

function mixed(from: Colour, to: Colour, share: number): Colour {
  const s = level(share) / 255;
  return [from[0] + s * (to[0] - from[0]), from[1] + s * (to[1] - from[1]), from[2] + s * (to[2] - from[2])];
}

function paintPixels(canvas: HTMLCanvasElement, height: number, width: number, pixel: (k: number) => Colour): void {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const image = new ImageData(width, height);
  for (let k = 0; k < width * height; k++) {
    const [r, g, b] = pixel(k);
    image.data.set([r, g, b, 255], 4 * k);
  }
  canvas.getContext("2d")?.putImageData(image, 0, 0);
}
