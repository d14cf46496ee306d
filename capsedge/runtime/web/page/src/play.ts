/** The open model in use: the drawing, the model's answer, and the pictures of its capsules. */
import type { Prediction, Provider } from "capsedge";
import type { Engine } from "./engine/client.js";
import type { ModelSource, Opened, PageImage } from "./engine/messages.js";
import { CONFIDENT } from "./generated/spec.js";
import { latest } from "./latest.js";
import { Camera } from "./ui/camera.js";
import { Classes } from "./ui/classes.js";
import { byId, decimal, make } from "./ui/dom.js";
import { hideProblem, showProblem } from "./ui/message.js";
import { areasOf, maskPicture, percent } from "./ui/mask.js";
import { Pad } from "./ui/pad.js";
import { Pictures, type Reconstruction } from "./ui/pictures.js";
import { Routing } from "./ui/routing.js";
import { showModelInput } from "./ui/model-input.js";
import { Sliders } from "./ui/sliders.js";
import { Stages } from "./ui/stages.js";
import { statusOf } from "./ui/status.js";

const LARGEST = 512; // side length of the camera's pictures, in pixels
const SAID = 4; // maximum number of classes, values or areas announced to screen readers

export class Play {
  private readonly pad = new Pad((ended) => this.drawn(ended));
  private readonly camera = new Camera((picture) => this.seen(picture));
  private readonly classes = new Classes((index) => this.choose(index));
  private readonly sliders = new Sliders(() => void this.decode());
  private readonly pictures = new Pictures();
  private readonly routing = new Routing();
  private readonly stages = new Stages();
  private readonly centre = byId<HTMLInputElement>("fit");
  private readonly invert = byId<HTMLInputElement>("invert");
  private model: Opened | null = null;
  private image: PageImage | null = null;
  private prediction: Prediction | null = null;
  private chosen: number | null = null;
  private speaking = false;
  private inverted = false;

  private readonly predict = latest(() => this.guarded(() => this.predictNow()));
  private readonly decode = latest(() => this.guarded(() => this.decodeNow()));

  constructor(private readonly engine: Engine) {
    byId("clear").addEventListener("click", () => this.clear());
    byId("undo").addEventListener("click", () => {
      this.camera.stop();
      this.image = null;
      this.pad.undo();
      this.drawn(true);
    });
    for (const switched of [this.centre, this.invert]) switched.addEventListener("change", () => this.drawn(true));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  /**
   * Open a model.
   *
   * @throws Failure if it is refused; the previous model then stays open.
   */
  async open(source: ModelSource, provider: Provider): Promise<void> {
    document.body.setAttribute("aria-busy", "true");
    try {
      const model = await this.engine.open(source, provider);
      this.model = model;
      this.reset(model);
    } finally {
      document.body.removeAttribute("aria-busy");
    }
    await this.predict();
  }

  /** Show an image file and classify it; `negative` has the same meaning as for the pad. */
  async take(image: Blob, name: string, negative = false): Promise<void> {
    this.camera.stop();
    hideProblem();
    try {
      this.pad.show(await createImageBitmap(image), negative);
    } catch {
      showProblem(new Error(`“${name}” is neither a model (.onnx) nor an image that this browser reads.`));
      return;
    }
    this.image = image;
    this.drawn(true);
  }

  /** Show a picture from the camera and classify it. */
  private async seen(picture: ImageBitmap): Promise<void> {
    const side = Math.min(picture.width, LARGEST);
    const context = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true });
    context?.drawImage(picture, 0, 0, side, side);
    this.image = context?.getImageData(0, 0, side, side) ?? null;
    this.pad.show(picture);
    await this.predict();
  }

  private clear(): void {
    this.camera.stop();
    this.image = null;
    this.pad.clear();
    this.drawn(true);
  }

  private reset(model: Opened): void {
    hideProblem();
    byId("loading").hidden = true;
    byId("main").hidden = false;
    this.prediction = null;
    this.chosen = null;
    this.speaking = true;
    this.classes.reset(model.description);
    this.routing.reset(model.description);
    byId("status").textContent = statusOf(model);
    byId("decoder").hidden = !model.description.hasDecoder;
    const missing = ["This file cannot draw what its capsules hold: its network was trained without a decoder, or it was exported without ", make("code", {}, "--with reconstruction"), "."];
    byId("picture-note").replaceChildren(...(model.description.hasDecoder ? ["What the decoder makes of a capsule. Turn its dimensions."] : missing));
    const colour = model.description.preprocessing?.channels === 3;
    byId("fit-label").hidden = colour || this.segments; // a mask lies where the drawing is
    byId("draw-title").textContent = colour ? "Show" : "Draw";
    byId("hint-subject").textContent = colour ? "Use the camera, or drop a photograph." : "Draw a digit, or two over each other.";
    for (const kind of ["digits", "photographs"]) byId(kind).hidden = (kind === "photographs") !== colour;
    byId("picture").hidden = this.segments;
    this.stages.show("decode", null);
    this.pad.lay(null);
  }

  /** Called after every change of the drawing. */
  private drawn(ended: boolean): void {
    if (!ended) {
      this.camera.stop();
      this.image = null;
    }
    hideProblem(); // of what was shown before
    this.chosen = null;
    this.speaking = ended;
    void this.predict();
  }

  private choose(index: number): void {
    this.chosen = index;
    if (this.prediction) this.show(this.prediction);
  }

  private async guarded(task: () => Promise<void>): Promise<void> {
    try {
      await task();
    } catch (error) {
      showProblem(error);
    }
  }

  /** Whether the model's answers are masks. */
  private get segments(): boolean {
    return this.model?.description.task === "segmentation";
  }

  private pixels(): PageImage | null {
    const p = this.model?.description.preprocessing;
    if (!p) return null;
    if (this.image) return this.image;
    return this.pad.pixels(p.height, p.width, this.centre.checked && p.channels === 1 && !this.segments, this.invert.checked);
  }

  private async predictNow(): Promise<void> {
    const { model } = this;
    const image = this.pixels();
    if (!model || !image) return;
    // Drawings use the ink that the model expects; images are inverted on request.
    const inverted = this.image !== null && this.invert.checked;
    const prediction = await this.engine.call("predict", image, inverted);
    if (model !== this.model) return;
    this.prediction = prediction;
    this.inverted = inverted;
    this.stages.show("prepare", prediction.milliseconds.prepare);
    this.stages.show("run", prediction.milliseconds.run);
    const start = performance.now();
    showModelInput(prediction.input, model.description);
    this.show(prediction);
    this.stages.show("draw", performance.now() - start);
  }

  private show(prediction: Prediction): void {
    if (!this.model) return;
    byId("advice").textContent = adviceOn(prediction, this.inverted);
    this.announce(prediction);
    if (this.model.description.task === "regression") {
      this.classes.values(prediction);
      return;
    }
    if (prediction.mask) {
      this.classes.areas(areasOf(prediction.mask, this.model.description));
      this.pad.lay(this.pad.empty ? null : maskPicture(prediction.mask));
      return;
    }
    const best = prediction.ranking[0]?.index ?? 0;
    const chosen = this.chosen ?? best;
    this.classes.show(prediction, chosen);
    if (prediction.trace) this.routing.show(prediction.trace, chosen);
    if (prediction.poses.data.length) this.sliders.show(poseOf(prediction, chosen));
    if (this.model.description.hasDecoder) void this.decode();
  }

  /** The class that is shown, and another that is present. */
  private pair(prediction: Prediction): { chosen: number; other: number | null } {
    const chosen = this.chosen ?? prediction.ranking[0]?.index ?? 0;
    const other = prediction.ranking.find(({ index, score }) => index !== chosen && score >= CONFIDENT)?.index ?? null;
    return { chosen, other };
  }

  private async decodeNow(): Promise<void> {
    const { prediction, model } = this;
    if (!prediction || !model?.description.hasDecoder) return;
    const { chosen, other } = this.pair(prediction);
    const poses = [this.sliders.pose(), ...(other === null ? [] : [poseOf(prediction, other)])];
    const start = performance.now();
    const found = await this.engine.call("decode", poses, other === null ? [chosen] : [chosen, other]);
    if (model !== this.model) return;
    this.stages.show("decode", performance.now() - start);
    const named = (place: number, index: number | null): Reconstruction | null => {
      const picture = found[place];
      return picture && index !== null ? { label: model.description.labels[index] ?? String(index), picture } : null;
    };
    const first = named(0, chosen);
    if (first) this.pictures.show(first, named(1, other));
  }

  /** Announce the answer to screen readers, once per drawing. */
  private announce(prediction: Prediction): void {
    if (!this.speaking || this.pad.empty) return;
    this.speaking = false;
    const there = prediction.ranking.filter(({ score }, k) => k === 0 || score >= CONFIDENT);
    const classes = there.map(({ label, score }) => `${label}, ${decimal(score)}`);
    const values = prediction.values.map(({ name, value, unit }) => `${name}, ${Number(value.toPrecision(4))} ${unit}`);
    const areas = prediction.mask && this.model ? areasOf(prediction.mask, this.model.description) : [];
    const shares = areas.map(({ label, share }) => `${label}, ${percent(share)}`);
    const said = [...classes, ...values, ...shares].slice(0, SAID).join("; ");
    byId("live").textContent = `${prediction.atypical ? adviceOn(prediction, this.inverted) : ""} ${said}`.trim();
  }

  /** Redraw everything in the page's current colours. */
  private redraw(): void {
    this.pad.draw();
    if (this.model && this.prediction) showModelInput(this.prediction.input, this.model.description);
    this.routing.draw();
    void this.decode();
  }
}

/** What the user should know about an answer: that there is nothing to see in the image, or that it seems inverted. */
function adviceOn({ atypical, hint }: Prediction, inverted: boolean): string {
  // The package's hint names its option; here it is a box.
  const box = inverted ? "mostly light once inverted: untick Invert" : "mostly light: if the ink is dark, tick Invert";
  const said = [atypical === null ? "" : `nothing to see: ${atypical}`, hint === null ? "" : box];
  return said
    .filter(Boolean)
    .map((text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`)
    .join(" ");
}

function poseOf(prediction: Prediction, index: number): Float32Array {
  const size = prediction.poses.dims[1] ?? 0;
  return prediction.poses.data.slice(index * size, (index + 1) * size);
}
