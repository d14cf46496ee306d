/** A loaded model: predicting with it, and decoding poses. */
import { checkArgument, checkOptions } from "./arguments.js";
import type { OutputRoles } from "./outputs.js";
import { noDecoder, type PoseDecoder } from "./decoder.js";
import { CONFIDENT, UNKNOWN } from "./generated/metadata.js";
import { INPUT_MAGNITUDE } from "./generated/spec.js";
import type { Description } from "./description.js";
import type { Provider, Runnable } from "./engine.js";
import { CapsedgeError } from "./errors.js";
import type { Port } from "./graph.js";
import type { Limits } from "./limits.js";
import { levelOf, mapsOf, maskOf, type Mask } from "./masks.js";
import type { Metadata } from "./metadata.js";
import { advice, measure, atypicalReason } from "./typical-input.js";
import { pixelsOf, type ImageSource } from "./pixels.js";
import { prepare } from "./prepare.js";
import { declaredRange, type Preprocessing } from "./preprocessing.js";
import { runItems, type Outputs } from "./runner.js";
import { checkFinite, ranked, scoresOf, type Ranked } from "./scores.js";
import { grouped } from "./text.js";
import type { FloatArray } from "./tensors.js";
import { checkTrace, ofImage, tracedLayers, tracedOutputs, type TracedLayer } from "./trace.js";

const SLACK = 1e-3; // share of the declared range that is allowed for rounding, and for interpolation that overshoots

export interface PrepareOptions {
  /** Whether to invert the image: for dark ink on a light background. */
  invert?: boolean;
}

export interface PredictOptions extends PrepareOptions {
  /** Maximum number of classes in the ranking; with neither this nor a threshold, the best (several labels: over 0.5). */
  top?: number;
  /** Minimum score of a class in the ranking; of a mask with one map of scores, of a pixel of the foreground. */
  threshold?: number;
  /** Whether the answer includes the routing, iteration by iteration; the file must be exported `--with trace`. */
  trace?: boolean;
}

/** The answer for one image. */
export interface Prediction {
  /** The best class; null if none reaches the threshold, and for a regression or segmentation. */
  label: string | null;
  index: number | null;
  score: number | null;
  /** The chosen classes, best first. */
  ranking: Ranked[];
  /** One score per class, `[J]`. */
  scores: Float32Array;
  /** One pose per class, `[J, P]`; `[J, 0]` if the model has none. */
  poses: FloatArray;
  /** The values of a regression; empty otherwise. */
  values: { name: string; value: number; unit: string }[];
  /** For a segmentation, the class of each pixel of the image, in its own size; null for other models. */
  mask: Mask | null;
  /** Why, by the file's typical input, there is nothing to see in the image; null if there is, or the file has none. */
  atypical: string | null;
  /** What to try, such as inverting the image; null if there is no advice. */
  hint: string | null;
  /** For a cascade, whether its large network decided; null for other models. */
  escalated: boolean | null;
  /** The model's input: the prepared image `[C, H, W]`, or `[H, W, C]` if it has that layout. */
  input: Float32Array;
  /** The routed layers, with the class capsules last; only if requested. */
  trace?: TracedLayer[];
  /** The time taken by each of the two stages. */
  milliseconds: { prepare: number; run: number };
}

/** What a prediction without classes of an image has in their place. */
const NO_CLASSES = {
  label: null,
  index: null,
  score: null,
  ranking: [],
  scores: new Float32Array(0),
  poses: { data: new Float32Array(0), dims: [0, 0] },
  escalated: null,
};

/** The parts of a session. */
export interface Parts {
  engine: Runnable;
  provider: Provider;
  fallback: string | null;
  threads: number;
  description: Description;
  metadata: Metadata;
  roles: OutputRoles;
  input: Port;
  outputs: readonly Port[];
  decoder: PoseDecoder | string;
  limits: Limits;
}

/** A loaded model, created by `load`. Calls may overlap; ONNX Runtime runs them one after another. */
export class Session {
  private closed = false;

  /** @internal */
  constructor(private readonly parts: Parts) {}

  /** What the file states about itself. */
  get description(): Description {
    return this.parts.description;
  }

  /** The provider that runs the model. */
  get provider(): Provider {
    return this.parts.provider;
  }

  /** Why the preferred provider is not used; null if it is. */
  get fallback(): string | null {
    return this.parts.fallback;
  }

  /** Number of WebAssembly threads. */
  get threads(): number {
    return this.parts.threads;
  }

  /**
   * The model's input `[C, H, W]` (or `[H, W, C]`) for one image, bit for bit the same as in Python and C.
   *
   * @throws CapsedgeError `input` if the image does not fit, `metadata` if the file does not state how to prepare
   *   one, `limit` if the image is too large.
   */
  async prepare(image: ImageSource, options: PrepareOptions = {}): Promise<Float32Array> {
    checkOptions("prepare", options);
    return (await this.sized(image, options.invert ?? false)).input;
  }

  /**
   * Classify or segment an image, or compute the values of a regression.
   *
   * @param image an image, or an input that `prepare` returned.
   * @throws CapsedgeError as `prepare`; also `input` for an invalid option, `file` if the model computes NaN, and
   *   `runtime` if ONNX Runtime fails.
   */
  async predict(image: ImageSource | Float32Array, options: PredictOptions = {}): Promise<Prediction> {
    this.checkOpen();
    checkOptions("predict", options);
    const { metadata, roles, engine, input } = this.parts;
    const choice = this.choice(options);
    const layers = options.trace ? this.traceLayers() : [];
    const start = performance.now();
    const { input: prepared, size } =
      image instanceof Float32Array
        ? { input: this.checked(image, options), size: null }
        : await this.sized(image, options.invert ?? false);
    const between = performance.now();
    const names = [roles.scores, roles.poses, ...roles.values, roles.escalated].filter(Boolean);
    const outputs = await runItems(engine, input, prepared, 1, this.imageShape(), [...names, ...tracedOutputs(layers)]);
    const milliseconds = { prepare: between - start, run: performance.now() - between };
    const found =
      metadata.task === "regression"
        ? this.estimated(outputs)
        : metadata.task === "segmentation"
          ? this.segmented(outputs, choice.threshold, size)
          : this.classified(outputs, choice);
    const seen = this.seen(prepared, found.scores, options.invert ?? false);
    const prediction: Prediction = { ...found, ...seen, input: prepared, milliseconds };
    return options.trace ? { ...prediction, trace: tracedLayers(layers, outputs) } : prediction;
  }

  /**
   * Reconstruct pictures from poses with the file's decoder.
   *
   * @param poses the poses of all classes `[N, J, P]`, or of `classIndex` alone `[N, P]`; dims may be omitted.
   * @param classIndex the class to reconstruct.
   * @returns `[N, J, C, H, W]`, or `[N, C, H, W]` for one class.
   * @throws CapsedgeError `input` if the file has no decoder, or the poses do not fit.
   */
  async decode(poses: Float32Array | FloatArray, classIndex?: number): Promise<FloatArray> {
    this.checkOpen();
    const { decoder } = this.parts;
    if (typeof decoder === "string") throw noDecoder(decoder);
    if (classIndex !== undefined) checkArgument("classIndex", classIndex);
    return decoder.decode(poses instanceof Float32Array ? poses : poses?.data, classIndex ?? null);
  }

  /** Release the model; further calls do nothing. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    const { decoder, engine } = this.parts;
    if (typeof decoder !== "string") await decoder.close();
    await engine.close();
  }

  private checkOpen(): void {
    if (this.closed) throw new CapsedgeError("input", "The session is closed.", "Load the model again.");
  }

  /** The input for an image, and the image's own height and width. */
  private async sized(image: ImageSource, invert: boolean) {
    const p = this.preprocessing();
    const pixels = await pixelsOf(image, p, this.parts.limits);
    const size: [number, number] = [pixels.height, pixels.width];
    return { input: prepare(pixels, p, invert), size };
  }

  private preprocessing(): Preprocessing {
    const p = this.parts.metadata.preprocessing;
    if (p) return p;
    throw new CapsedgeError(
      "metadata",
      "The file does not state its preprocessing.",
      "Describe it with `capsedge optimize --size`, or pass a prepared Float32Array.",
    );
  }

  private choice({ top, threshold }: PredictOptions): { top: number | null; threshold: number | null } {
    const { task } = this.parts.metadata;
    if (top === undefined && threshold === undefined) {
      return task === "multi-label" ? { top: null, threshold: CONFIDENT } : { top: 1, threshold: null };
    }
    if (task === "regression")
      throw new CapsedgeError(
        "input",
        "top and threshold choose among classes, but a regression has none.",
        "Leave them out.",
      );
    if (task === "segmentation" && top !== undefined)
      throw new CapsedgeError(
        "input",
        "top chooses among the classes of an image, but each pixel of a segmentation has its own.",
        "Leave it out.",
      );
    return { top: top ?? null, threshold: threshold ?? null };
  }

  private traceLayers() {
    const { metadata, outputs, limits } = this.parts;
    if (!metadata.trace)
      throw new CapsedgeError(
        "input",
        "The file has no trace of its routing.",
        "Export the model again with `capsedge export --with trace`.",
      );
    checkTrace(metadata.trace, outputs, limits);
    return metadata.trace;
  }

  /** The sizes of one image in the input. */
  private imageShape(): number[] {
    const p = this.parts.metadata.preprocessing;
    const declared = p
      ? p.layout === "NCHW"
        ? [p.channels, p.height, p.width]
        : [p.height, p.width, p.channels]
      : null;
    const shape = declared ?? this.parts.input.shape.slice(1);
    if (shape.includes(null))
      throw new CapsedgeError(
        "metadata",
        "The file does not fix the size of its input.",
        "Describe it with `capsedge optimize --size`.",
      );
    return shape as number[];
  }

  /** The image as a prepared input, if it is one. */
  private checked(image: Float32Array, options: PredictOptions): Float32Array {
    const shape = this.imageShape();
    const count = shape.reduce((a, b) => a * b, 1);
    if (image.length !== count) {
      throw new CapsedgeError(
        "input",
        `The prepared input has ${grouped(image.length)} values.`,
        `Pass ${grouped(count)}, [${shape.join(", ")}], as prepare gives them.`,
      );
    }
    if (options.invert)
      throw new CapsedgeError("input", "A prepared input cannot be inverted.", "Pass invert to prepare.");
    if (!image.every((value) => Math.abs(value) < INPUT_MAGNITUDE)) {
      throw new CapsedgeError(
        "input",
        "The prepared input has values that are NaN, infinite, or of 2^32 and more.",
        "Pass finite numbers.",
      );
    }
    const p = this.parts.metadata.preprocessing;
    if (p) checkDeclared(image, p);
    return image;
  }

  private classified(outputs: Outputs, choice: { top: number | null; threshold: number | null }) {
    const { roles, metadata, description } = this.parts;
    const found = outputs.get(roles.scores) as FloatArray;
    checkFinite(found.data, roles.scores);
    const named = metadata.classNames.length;
    if (found.dims.length !== 2 || (named && found.dims[1] !== named)) throw otherSize(found, named, "scores");
    const scores = scoresOf(found.data, roles.kind, metadata.task === "multi-label");
    const ranking = ranked(scores, (k) => description.labels[k] ?? String(k), choice.top, choice.threshold);
    const poses = roles.poses ? ofImage(outputs.get(roles.poses) as FloatArray).data : new Float32Array(0);
    if (poses.length % scores.length) throw otherSize({ dims: [poses.length] }, scores.length, "poses");
    const escalated = roles.escalated ? (outputs.get(roles.escalated)?.data[0] ?? 0) !== 0 : null;
    const [best] = ranking;
    return {
      label: best?.label ?? null,
      index: best?.index ?? null,
      score: best?.score ?? null,
      ranking,
      scores: Float32Array.from(scores),
      poses: { data: poses, dims: [scores.length, poses.length / scores.length] },
      values: [],
      escalated,
      mask: null,
    };
  }

  private segmented(outputs: Outputs, threshold: number | null, size: [number, number] | null) {
    const { roles, metadata } = this.parts;
    const found = outputs.get(roles.scores) as FloatArray;
    checkFinite(found.data, roles.scores);
    const p = metadata.preprocessing;
    const named = metadata.classNames.length;
    const maps = [3, 4].includes(found.dims.length) ? mapsOf(found.dims, p) : 0;
    if (!maps || maps > UNKNOWN || (named && named !== Math.max(2, maps))) throw otherSize(found, named, "maps");
    if (maps > 1 && threshold !== null)
      throw new CapsedgeError(
        "input",
        "threshold decides whether a pixel is of a single class; here the largest score decides.",
        "Leave it out.",
      );
    const [channels, ...sides] = this.imageShape() as [number, number, number];
    const own = size ?? (p?.layout === "NHWC" ? [channels, sides[0]] : sides);
    const mask = maskOf(found, p, own as [number, number], levelOf(threshold ?? CONFIDENT, roles.kind));
    return { ...NO_CLASSES, values: [], mask };
  }

  private estimated(outputs: Outputs) {
    const { roles, description } = this.parts;
    const found = roles.values.flatMap((name) => {
      const { data } = outputs.get(name) as FloatArray;
      checkFinite(data, name);
      return Array.from(data);
    });
    if (found.length !== description.values.length) {
      throw otherSize({ dims: [found.length] }, description.values.length, "values");
    }
    const values = found.map((value, k) => ({ name: "", unit: "", ...description.values[k], value }));
    return { ...NO_CLASSES, values, mask: null };
  }

  private seen(prepared: Float32Array, scores: Float32Array, inverted: boolean) {
    const { preprocessing: p, typicalInput } = this.parts.metadata;
    if (!p) return { atypical: null, hint: null };
    const atypical = typicalInput && atypicalReason(typicalInput, measure(prepared, p));
    if (!scores.length) return { atypical, hint: null };
    const score = atypical === null ? scores.reduce((a, b) => Math.max(a, b)) : 0;
    return { atypical, hint: advice(prepared, p, score, typicalInput, inverted) };
  }
}

/** Refuse prepared values that the model's preprocessing cannot produce from any image. */
function checkDeclared(image: Float32Array, p: Preprocessing): void {
  const [low, high] = declaredRange(p);
  const slack = SLACK * (high - low);
  const least = image.reduce((a, b) => Math.min(a, b));
  const most = image.reduce((a, b) => Math.max(a, b));
  if (low - slack <= least && most <= high + slack) return;
  throw new CapsedgeError(
    "input",
    `The prepared input has values from ${least} to ${most}; the model's preprocessing gives ${low} to ${high}.`,
    "Pass pixels as { data, width, height, channels }, or what prepare gives.",
  );
}

function otherSize(found: { dims: readonly number[] }, named: number, what: string): CapsedgeError {
  return new CapsedgeError(
    "metadata",
    `The model computed ${what} [${found.dims.join(", ")}]; its metadata names ${named}.`,
    "Describe the file again with `capsedge optimize`.",
  );
}
