/** The model's own input, as a picture. */
import type { Description } from "capsedge";
import { byId } from "./dom.js";
import { paintPicture, palette } from "./paint.js";

/** Show a prepared input: what the model sees, whatever its layout and normalization. */
export function showModelInput(input: Float32Array, description: Description): void {
  const p = description.preprocessing;
  if (!p) return;
  const { paper, ink } = palette();
  const size = p.height * p.width;
  const picture = new Float32Array(p.channels * size);
  for (let c = 0; c < p.channels; c++) {
    const source = p.order === "BGR" ? p.channels - 1 - c : c;
    for (let k = 0; k < size; k++) {
      const at = p.layout === "NCHW" ? source * size + k : k * p.channels + source;
      picture[c * size + k] = ((input[at] ?? 0) * (p.std[source] ?? p.std[0] ?? 1) + (p.mean[source] ?? p.mean[0] ?? 0)) / (255 * p.scale);
    }
  }
  if (p.perImage === "standardize") stretch(picture);
  paintPicture(byId<HTMLCanvasElement>("seen"), picture, [p.channels, p.height, p.width], paper, ink);
  byId("seen-caption").textContent = `What the network sees: ${p.width} × ${p.height}`;
}

/** Scale values to the range 0 to 1. */
function stretch(picture: Float32Array): void {
  const least = picture.reduce((a, b) => Math.min(a, b));
  const most = picture.reduce((a, b) => Math.max(a, b));
  for (const [k, value] of picture.entries()) picture[k] = (value - least) / Math.max(most - least, 1e-9);
}
