/** Metadata fields that are objects: origin, cascade, trace, typical input, and the reason for the choice of scores. */
import { Malformed } from "./errors.js";
import type {
  cascadeFields,
  chosenScoresFields,
  layersMemberFields,
  originFields,
  traceFields,
  typicalInputFields,
} from "./generated/metadata.js";
import {
  ITERATIONS,
  LAYERS,
  NAME_CHARACTERS,
  ORIGIN_CHARACTERS,
  ORIGIN_ENTRIES,
  ROUTING_WORDS,
  TRACE_KIND_WORDS,
  TRACE_REQUIRED,
  WIDTH,
  type TraceKind,
} from "./generated/spec.js";
import { oneOf } from "./preprocessing.js";
import { printable, short } from "./text.js";

/** Where imported weights come from, as the file claims. */
export interface Origin {
  readonly family: string;
  readonly source: string;
  /** Empty if the repository states none. */
  readonly licence: string;
  readonly dialect: string;
  /** How it differs from the paper. */
  readonly differences: readonly string[];
  readonly file: string;
  readonly fileSha256: string;
  /** What was assumed during the import, or changed since. */
  readonly notes: readonly string[];
  /** The result of a comparison with the author's code; null if there was none. */
  readonly compared: Readonly<Record<string, string | number | boolean | null>> | null;
}

/** The properties of images like the training images: the ranges of their measurements. Others are atypical. */
export interface TypicalInput {
  readonly contrast: readonly [number, number];
  readonly roughness: readonly [number, number];
  readonly frameLevel: readonly [number, number];
  readonly frameContrast: readonly [number, number];
  readonly level: readonly [number, number];
  /** Number of images that the ranges were measured on. */
  readonly images: number;
}

/** Why this output was chosen for the scores, as stated by the file's maker. */
export interface ChosenScores {
  readonly reason: string;
  /** The output from which the export computed the scores; empty if the network itself computes them. */
  readonly madeOf: string;
  /** Number of scores that were computed. */
  readonly classes: number;
  /** Whether they are capsule lengths. */
  readonly capsules: boolean;
}

/** A small network that decides first, and a large one for escalated images. */
export interface Cascade {
  /** File names of the two networks. */
  readonly small: string;
  readonly large: string;
  /** Images are escalated below this margin, and below this best score if one is stated. */
  readonly margin: number;
  readonly score: number | null;
  /** Shares of the held-out images that are decided as by the large network, and that are escalated. */
  readonly agreement: number;
  readonly share: number;
}

/** The metadata of a routed layer and its trace. */
export interface TraceLayer {
  readonly name: string;
  readonly routing: string;
  readonly iterations: number;
  /** The graph output that holds each kind of value. */
  readonly outputs: ReadonlyMap<TraceKind, string>;
  /** Rows and columns of the parents' map; 1 and 1 for a dense layer. */
  readonly grid: readonly [number, number];
  /** Rows and columns of the children's map; null if unknown. */
  readonly childGrid: readonly [number, number] | null;
  /** The window that a parent sees, in rows and columns of the children; null if unknown. */
  readonly kernel: readonly [number, number] | null;
  readonly strides: readonly [number, number] | null;
  /** Whether the children of a window are ordered by type, row and column, instead of by row, column and type. */
  readonly typesFirst: boolean;
}

/** The origin of imported weights. */
export function originOf({ file_sha256, compared, ...o }: ReturnType<typeof originFields>): Origin {
  const entries = compared === null ? [] : [...compared];
  if (Math.max(o.differences.length, o.notes.length, entries.length) > ORIGIN_ENTRIES) {
    throw new Malformed(`the origin has over ${ORIGIN_ENTRIES} entries of one kind`, true);
  }
  const single = [o.family, o.source, o.licence, o.dialect, o.file, file_sha256];
  const texts = [...single, ...o.differences, ...o.notes, ...entries.flat()];
  if (texts.some((each) => typeof each === "string" && characters(each) > ORIGIN_CHARACTERS)) {
    throw new Malformed(`a text of the origin has over ${ORIGIN_CHARACTERS} characters`, true);
  }
  const plain = (value: string | number | boolean | null) => (typeof value === "string" ? printable(value) : value);
  return {
    family: printable(o.family),
    source: printable(o.source),
    licence: printable(o.licence),
    dialect: printable(o.dialect),
    differences: o.differences.map(printable),
    file: printable(o.file),
    fileSha256: printable(file_sha256),
    notes: o.notes.map(printable),
    compared:
      compared === null ? null : Object.fromEntries(entries.map(([key, value]) => [printable(key), plain(value)])),
  };
}

/** Why this output was chosen for the scores. */
export function chosenScoresOf(declared: ReturnType<typeof chosenScoresFields>): ChosenScores {
  const { reason, made_of, classes, capsules } = declared;
  if (Math.max(characters(reason), characters(made_of)) > ORIGIN_CHARACTERS) {
    throw new Malformed(`a text on the scores has over ${ORIGIN_CHARACTERS} characters`, true);
  }
  if ((made_of !== "") !== (classes >= 1 && classes <= WIDTH)) {
    throw new Malformed(`${classes} scores made of '${short(made_of)}'`);
  }
  return { reason: printable(reason), madeOf: made_of, classes, capsules };
}

/** The typical input. */
export function typicalInputOf(c: ReturnType<typeof typicalInputFields>): TypicalInput {
  for (const [low, high] of [c.contrast, c.level, c.roughness, c.frame_level, c.frame_contrast]) {
    if (!Number.isFinite(low) || !Number.isFinite(high) || low > high)
      throw new Malformed(`a span is ${low} to ${high}`);
  }
  if (c.contrast[0] <= 0) throw new Malformed("the span of contrast begins at 0, where every image is blank");
  if (c.images < 0 || characters(c.data_sha256) > 64) {
    throw new Malformed("the images of the spans are not stated as a number and a checksum");
  }
  const { contrast, roughness, level, images } = c;
  return { contrast, roughness, frameLevel: c.frame_level, frameContrast: c.frame_contrast, level, images };
}

/** The two networks of a cascade. */
export function cascadeOf(c: ReturnType<typeof cascadeFields>): Cascade {
  for (const parent of [c.small, c.large]) {
    if ([parent.file, parent.sha256, parent.checkpoint_sha256].some((each) => characters(each) > NAME_CHARACTERS)) {
      throw new Malformed("the name or checksum of a parent is too long", true);
    }
  }
  if (![c.min_agreement, c.agreement, c.agreement_at_least, c.share].every((share) => share >= 0 && share <= 1)) {
    throw new Malformed("an agreement or share is not from 0 to 1");
  }
  if (![c.margin, c.score ?? 0, c.cost].every(Number.isFinite) || c.cost < 0) {
    throw new Malformed("the thresholds and the cost must be finite, and the cost not negative");
  }
  if (c.images < 1 || characters(c.data_sha256) > 64) {
    throw new Malformed("the held-out images are not stated as a number and a checksum");
  }
  const { margin, score, agreement, share } = c;
  return { small: printable(c.small.file), large: printable(c.large.file), margin, score, agreement, share };
}

/** The traced layers in the order of routing. */
export function traceOf({ layers }: ReturnType<typeof traceFields>): TraceLayer[] {
  if (!layers.length || layers.length > LAYERS) throw new Malformed(`a trace of ${layers.length} layers`);
  const names = layers.map((layer) => layer.name);
  const outputs = layers.flatMap((layer) => [...layer.outputs.values()]);
  if (new Set(names).size < names.length || new Set(outputs).size < outputs.length) {
    throw new Malformed("a layer or an output is named twice");
  }
  return layers.map((layer) => {
    checkLayer(layer);
    const { iterations, grid, kernel, strides } = layer;
    const kinds = layer.outputs as ReadonlyMap<TraceKind, string>;
    return {
      name: printable(layer.name),
      routing: oneOf(ROUTING_WORDS, layer.routing, "routing"),
      iterations,
      outputs: kinds,
      grid,
      childGrid: layer.child_grid,
      kernel,
      strides,
      typesFirst: layer.types_first,
    };
  });
}

function checkLayer(layer: ReturnType<typeof layersMemberFields>): void {
  if (layer.iterations < 1 || layer.iterations > ITERATIONS) throw new Malformed(`iterations ${layer.iterations}`);
  const kinds = [...layer.outputs.keys()];
  const known = kinds.every((kind) => (TRACE_KIND_WORDS as readonly string[]).includes(kind));
  if (!known || !TRACE_REQUIRED.every((kind) => kinds.includes(kind))) {
    throw new Malformed(`outputs for ${short(kinds.join(", "))}; known: ${TRACE_KIND_WORDS.join(", ")}`);
  }
  const sides = [layer.grid, layer.child_grid, layer.kernel, layer.strides].flatMap((each) => each ?? []);
  if (sides.some((each) => each < 1 || each > WIDTH))
    throw new Malformed(`a side of '${short(layer.name)}' is not 1 to ${WIDTH}`);
  if ([layer.name, ...layer.outputs.values()].some((each) => characters(each) > NAME_CHARACTERS)) {
    throw new Malformed(`a name has over ${NAME_CHARACTERS} characters`, true);
  }
}

/** The number of characters in a text, counted as Unicode code points. */
export function characters(text: string): number {
  let count = 0;
  for (const _ of text) count++;
  return count;
}
