/** Reconstructions of the chosen class, of a second class that is present, and of both together. */
import type { FloatArray } from "capsedge";
import { byId, make } from "./dom.js";
import { paintLayers, paintPicture, palette, type Colour } from "./paint.js";

/** A class and the picture `[C, H, W]` of its capsule. */
export interface Reconstruction {
  label: string;
  picture: FloatArray;
}

export class Pictures {
  private readonly list = byId("pictures");
  private readonly canvases: HTMLCanvasElement[] = [];
  private readonly captions: HTMLElement[] = [];

  /** Show the picture of the chosen class, and of another if there is one. */
  show(chosen: Reconstruction, other: Reconstruction | null): void {
    const { paper, ink, accent } = palette();
    this.need(other ? 3 : 1);
    this.one(0, chosen, paper, accent);
    if (!other) return;
    this.one(1, other, paper, ink);
    this.together(chosen, other);
  }

  private one(place: number, { label, picture }: Reconstruction, paper: Colour, colour: Colour): void {
    const canvas = this.canvases[place];
    if (!canvas) return;
    paintPicture(canvas, picture.data, picture.dims, paper, colour);
    this.name(place, label, `Reconstruction of ${label}`);
  }

  private together(chosen: Reconstruction, other: Reconstruction): void {
    const canvas = this.canvases[2];
    const [channels = 1, height = 1, width = 1] = chosen.picture.dims;
    if (!canvas) return;
    const { paper, ink, accent } = palette();
    const layers = [
      { values: grey(other.picture, channels), colour: ink },
      { values: grey(chosen.picture, channels), colour: accent },
    ];
    paintLayers(canvas, height, width, paper, layers);
    this.name(2, "both", `Reconstructions of ${chosen.label} and ${other.label} over each other`);
  }

  private name(place: number, caption: string, description: string): void {
    const text = this.captions[place];
    if (text && text.textContent !== caption) text.textContent = caption;
    this.canvases[place]?.setAttribute("aria-label", description);
  }

  private need(count: number): void {
    if (this.canvases.length === count) return;
    this.canvases.length = this.captions.length = 0;
    for (let k = 0; k < count; k++) {
      const canvas = make("canvas");
      canvas.setAttribute("role", "img");
      this.canvases.push(canvas);
      this.captions.push(make("figcaption"));
    }
    this.list.className = count > 1 ? "pictures several" : "pictures";
    this.list.replaceChildren(...this.canvases.map((canvas, k) => make("figure", {}, canvas, this.captions[k] ?? "")));
  }
}

/** The mean of a picture's channels. */
function grey({ data, dims }: FloatArray, channels: number): Float32Array {
  const size = (dims[1] ?? 1) * (dims[2] ?? 1);
  return Float32Array.from({ length: size }, (_, k) => {
    let sum = 0;
    for (let c = 0; c < channels; c++) sum += data[c * size + k] ?? 0;
    return sum / channels;
  });
}
