/** The pad, which is drawn on or shows an image. */
import { centred, drawStrokes, type Point, type Stroke } from "./strokes.js";
import { byId } from "./dom.js";

const FINER = 4; // drawn pixels per pixel of the model's input; the model's own resizing averages them
const MOST = 1024; // side length in pixels

/** The pad; `changed` is called after every new piece of a line, with whether the line has ended. */
export class Pad {
  private readonly canvas = byId<HTMLCanvasElement>("draw");
  private readonly hint = byId("hint");
  private readonly strokes: Stroke[] = [];
  private readonly running = new Map<number, Stroke>();
  private image: ImageBitmap | null = null;
  private negative = false;
  private mask: OffscreenCanvas | null = null;

  constructor(private readonly changed: (ended: boolean) => void) {
    this.canvas.addEventListener("pointerdown", (event) => this.begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.extend(event));
    for (const name of ["pointerup", "pointercancel"] as const) {
      this.canvas.addEventListener(name, (event) => this.end(event));
    }
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** Whether the pad is empty. */
  get empty(): boolean {
    return !this.strokes.length && !this.image;
  }

  clear(): void {
    this.strokes.length = 0;
    this.show(null);
  }

  /** Remove the last line. */
  undo(): void {
    this.strokes.pop();
    this.show(null);
  }

  /**
   * Show an image instead of a drawing.
   *
   * @param negative whether it is light ink on black, which is shown as ink on the page's paper colour.
   */
  show(image: ImageBitmap | null, negative = false): void {
    if (image) this.strokes.length = 0;
    this.negative = negative;
    // A mask stays over the camera's next picture until that one's is there.
    if (image?.width !== this.image?.width || image?.height !== this.image?.height) this.mask = null;
    if (this.image !== image) this.image?.close();
    this.image = image;
    this.draw();
  }

  /** Lay the picture of a mask over the image or the drawing; null takes it away. */
  lay(mask: OffscreenCanvas | null): void {
    this.mask = mask;
    this.draw();
  }

  /**
   * The drawing as an image for a model: light lines on black, or dark lines on white.
   *
   * @param height height of the model's input; `width` is its width.
   * @param centre whether to centre the drawing and scale it to the size of an MNIST digit.
   */
  pixels(height: number, width: number, centre: boolean, dark: boolean): ImageData {
    const finer = Math.max(1, Math.min(FINER, Math.floor(MOST / Math.max(height, width))));
    const [w, h] = [finer * width, finer * height];
    const context = new OffscreenCanvas(w, h).getContext("2d", { willReadFrequently: true });
    if (!context) throw new Error("The browser gives no canvas.");
    context.fillStyle = dark ? "#fff" : "#000";
    context.fillRect(0, 0, w, h);
    drawStrokes(context, this.strokes, w, h, dark ? "#000" : "#fff", centre ? centred(this.strokes) : undefined);
    return context.getImageData(0, 0, w, h);
  }

  /** Draw everything in the colours of the style sheet. */
  draw(): void {
    const side = this.canvas.clientWidth;
    const pixels = Math.max(1, Math.round(side * devicePixelRatio));
    if (this.canvas.width !== pixels) this.canvas.width = this.canvas.height = pixels;
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.clearRect(0, 0, pixels, pixels);
    const inverted = this.negative && !matchMedia("(prefers-color-scheme: dark)").matches;
    context.filter = inverted ? "invert(1)" : "none";
    if (this.image) drawImage(context, this.image, pixels);
    context.filter = "none";
    drawStrokes(context, this.strokes, pixels, pixels, getComputedStyle(this.canvas).color);
    if (this.mask) drawImage(context, this.mask, pixels);
    this.hint.hidden = !this.empty;
  }

  private begin(event: PointerEvent): void {
    if (event.button !== 0) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    if (this.image) this.show(null);
    const stroke: Stroke = [this.at(event)];
    this.strokes.push(stroke);
    this.running.set(event.pointerId, stroke);
    this.draw();
    this.changed(false);
  }

  private extend(event: PointerEvent): void {
    const stroke = this.running.get(event.pointerId);
    if (!stroke) return;
    const events = event.getCoalescedEvents();
    stroke.push(...(events.length ? events : [event]).map((each) => this.at(each)));
    this.draw();
    this.changed(false);
  }

  private end(event: PointerEvent): void {
    if (this.running.delete(event.pointerId)) this.changed(true);
  }

  private at(event: PointerEvent): Point {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    return [(event.clientX - left) / width, (event.clientY - top) / height];
  }
}

/** Draw an image as large as the pad allows; the pixels of a small one stay visible. */
function drawImage(context: CanvasRenderingContext2D, image: ImageBitmap | OffscreenCanvas, side: number): void {
  const scale = Math.min(side / image.width, side / image.height);
  const [width, height] = [image.width * scale, image.height * scale];
  context.imageSmoothingEnabled = scale < 2;
  context.drawImage(image, (side - width) / 2, (side - height) / 2, width, height);
}
