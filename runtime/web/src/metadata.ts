/** The metadata of a file: its `capsedge.*` properties, typed and checked, as `metadata.py` reads them. */
import { integer, list, nullable, object, string, unread, type Decoder } from "./decode.js";
import { CapsedgeError, Malformed } from "./errors.js";
import { parseJson, type Json } from "./json.js";
import { NAME_CHARACTERS, WIDTH, type Limits } from "./limits.js";
import { oneOf, readPreprocessing, type Preprocessing } from "./preprocessing.js";
import {
  PROPERTIES,
  characters,
  readCascade,
  readChosen,
  readCriterion,
  readOrigin,
  readTrace,
  type Cascade,
  type Chosen,
  type Criterion,
  type Origin,
  type TraceLayer,
} from "./stated.js";

const PREFIX = "capsedge.";
const NEWEST_SCHEMA = 2; // a file is of schema 2 only if it says what schema 1 cannot
const LEAST_SIDE = 3; // a frame, and something inside it
const TASKS = ["single-label", "multi-label", "regression"] as const;
const KINDS = ["length", "logits", "probability"] as const;

export type Task = (typeof TASKS)[number];
export type ScoreKind = (typeof KINDS)[number];

/** Which outputs hold the answer, where that is not `lengths` or `logits`, and `poses`. */
export interface StatedOutputs {
  readonly scores: string;
  readonly kind: ScoreKind | "";
  readonly poses: string;
  /** Outputs of a regression, and the names and units of all their values. */
  readonly values: readonly string[];
  readonly names: readonly string[];
  readonly units: readonly string[];
}

/** What a file says of itself. Names are as in the file; the description has them printable. */
export interface Metadata {
  readonly architecture: string;
  readonly routing: string;
  readonly iterations: number;
  readonly classNames: readonly string[];
  readonly preprocessing: Preprocessing | null;
  readonly task: Task;
  readonly precision: string;
  readonly checkpointSha256: string;
  readonly outputs: StatedOutputs | null;
  readonly origin: Origin | null;
  readonly criterion: Criterion | null;
  readonly cascade: Cascade | null;
  readonly chosen: Chosen | null;
  readonly trace: readonly TraceLayer[] | null;
}

/**
 * Read the properties of a file; null if it has none of capsedge.
 *
 * @throws CapsedgeError `metadata` where they are damaged, contradict themselves or are of a newer schema, `limit`
 *   where they are too large.
 */
export function readMetadata(properties: ReadonlyMap<string, string>, limits: Limits): Metadata | null {
  try {
    return read(properties, limits);
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    throw new CapsedgeError(
      error.tooLarge ? "limit" : "metadata",
      `The model's metadata cannot be read: ${error.message}.`,
      "Export the model again with `capsedge export`.",
      { cause: error },
    );
  }
}

function read(properties: ReadonlyMap<string, string>, limits: Limits): Metadata | null {
  const ours = [...properties].filter(([key]) => key.startsWith(PREFIX));
  if (!ours.length) return null;
  const apart = Object.values(PROPERTIES).map((key) => properties.get(key) ?? "");
  const size = [...ours.map(([, text]) => text), ...apart].reduce((sum, text) => sum + text.length, 0);
  if (size > limits.metadataBytes) throw new Malformed(`it has over ${limits.metadataBytes} bytes`, true);
  const values = new Map<string, Json>(ours.map(([key, text]) => [key.slice(PREFIX.length), parseJson(text)]));
  const schema = integer(values.get("schema") ?? null, "schema");
  values.delete("schema");
  if (schema < 1 || schema > NEWEST_SCHEMA) {
    throw new CapsedgeError(
      "metadata",
      `The model's metadata has another schema: ${schema}; this version of capsedge reads up to ${NEWEST_SCHEMA}.`,
      "Export the model again, or install the capsedge that made it.",
    );
  }
  const found = { ...checked(values, limits), ...statedApart(properties, limits) };
  checkWhole(found, schema);
  return found;
}

function statedApart(properties: ReadonlyMap<string, string>, limits: Limits) {
  return {
    origin: readOrigin(properties),
    criterion: readCriterion(properties, limits),
    cascade: readCascade(properties, limits),
    chosen: readChosen(properties),
    trace: readTrace(properties, limits),
  };
}

// Older files also use numbers as class names.
const className: Decoder<string> = (value, name) => (typeof value === "bigint" ? String(value) : string(value, name));

const outputsOf = object(
  { scores: string, kind: string, poses: string, values: list(string), names: list(string), units: list(string) },
  { scores: "", kind: "", poses: "", values: [], names: [], units: [] },
);

function checked(values: Map<string, Json>, limits: Limits) {
  const preprocessing: Decoder<Preprocessing> = (value, name) => readPreprocessing(value, name, limits);
  const m = object(
    {
      architecture: string,
      configuration: unread,
      routing: string,
      iterations: integer,
      class_names: list(className),
      preprocessing: nullable(preprocessing),
      task: string,
      precision: string,
      calibration: unread,
      checkpoint_sha256: string,
      parity: unread,
      outputs: nullable(outputsOf),
    },
    {
      task: "single-label",
      precision: "fp32",
      calibration: undefined,
      checkpoint_sha256: "",
      parity: undefined,
      outputs: null,
    },
  )(values, "");
  const task = oneOf(TASKS, m.task, "task");
  if (m.class_names.length > WIDTH) throw new Malformed(`there are over ${WIDTH} classes`, true);
  checkNames(m.class_names, "a class name");
  if (Math.abs(m.iterations + 0.5) > 2 ** 31) throw new Malformed(`iterations ${m.iterations}`);
  return {
    architecture: m.architecture,
    routing: m.routing,
    iterations: m.iterations,
    classNames: m.class_names,
    preprocessing: m.preprocessing,
    task,
    precision: m.precision,
    checkpointSha256: m.checkpoint_sha256,
    outputs: m.outputs === null && task !== "regression" ? null : statedOutputs(m.outputs, task, m.class_names),
  };
}

type Outputs = ReturnType<typeof outputsOf>;

/** The outputs, which contradict neither themselves nor the task. */
function statedOutputs(found: Outputs | null, task: Task, classNames: readonly string[]): StatedOutputs {
  const o = found ?? outputsOf(new Map(), "outputs");
  const ofValues = [o.values, o.names, o.units].some((each) => each.length > 0);
  const ofScores = [o.scores, o.kind, o.poses].some(Boolean);
  if (task === "regression") checkRegression(o, ofScores || classNames.length > 0);
  else if (!o.scores || ofValues) throw new Malformed("a classification has an output for scores, and no values");
  const named = [o.scores, o.poses].filter(Boolean).concat(o.values);
  if (new Set(named).size < named.length || o.values.includes("")) {
    throw new Malformed("an output is named twice, or has no name");
  }
  if (o.names.length > WIDTH) throw new Malformed(`there are over ${WIDTH} values`, true);
  checkNames([...o.names, ...o.units], "a name or unit");
  return { ...o, kind: task === "regression" ? "" : oneOf(KINDS, o.kind, "kind of scores") };
}

function checkRegression(o: Outputs, ofClasses: boolean): void {
  if (!o.values.length || ofClasses) {
    throw new Malformed("a regression has outputs for values, and neither scores nor classes");
  }
  if (!o.names.length || o.units.length !== o.names.length) {
    throw new Malformed(`the values have ${o.names.length} names and ${o.units.length} units`);
  }
}

function checkNames(names: readonly string[], what: string): void {
  if (names.some((name) => characters(name) > NAME_CHARACTERS)) {
    throw new Malformed(`${what} has over ${NAME_CHARACTERS} characters`, true);
  }
}

/** What concerns several fields. */
function checkWhole(m: Metadata, schema: number): void {
  const p = m.preprocessing;
  const newer = m.outputs !== null || (p !== null && (p.perImage !== "" || p.layout !== "NCHW" || p.order !== "RGB"));
  if (newer && schema < NEWEST_SCHEMA) {
    throw new Malformed(`schema ${schema} has no 'outputs', 'per_image', 'layout' and 'order'`);
  }
  if (m.criterion && (p === null || Math.min(p.height, p.width) < LEAST_SIDE)) {
    throw new Malformed(
      `a criterion for nothing to see needs the preprocessing of images, from ${LEAST_SIDE} pixels a side on`,
    );
  }
  if (m.cascade && m.task === "regression") throw new Malformed("a regression has no classes to be in doubt between");
}
