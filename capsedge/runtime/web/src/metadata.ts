/** The metadata of a file: its `capsedge.*` properties, typed and checked as in `metadata.py`. */
import { integer } from "./decode.js";
import { CapsedgeError, Malformed } from "./errors.js";
import { parseJson, type Json } from "./json.js";
import {
  LEAST_SIDE,
  metadataFields,
  outputsFields,
  PREFIX,
  SCHEMA,
  TEXT_LIMITS,
  UNKNOWN,
} from "./generated/metadata.js";
import {
  NAME_CHARACTERS,
  RUN_TENSORS,
  SCORE_KIND_WORDS,
  TASK_WORDS,
  WIDTH,
  type ScoreKind,
  type Task,
} from "./generated/spec.js";
import type { Limits } from "./limits.js";
import { oneOf, checkedPreprocessing, type Preprocessing } from "./preprocessing.js";
import {
  cascadeOf,
  characters,
  chosenScoresOf,
  originOf,
  traceOf,
  typicalInputOf,
  type Cascade,
  type ChosenScores,
  type Origin,
  type TraceLayer,
  type TypicalInput,
} from "./declared-fields.js";
import { short } from "./text.js";

/** Which outputs hold scores, poses or values, if they are not named `lengths`, `logits` and `poses`. */
export interface DeclaredOutputs {
  readonly scores: string;
  readonly kind: ScoreKind | "";
  readonly poses: string;
  /** Outputs of a regression, and the names and units of all their values. */
  readonly values: readonly string[];
  readonly names: readonly string[];
  readonly units: readonly string[];
}

/** The metadata of a file. Names are as in the file; the description makes them printable. */
export interface Metadata {
  readonly architecture: string;
  readonly routing: string;
  readonly iterations: number;
  readonly classNames: readonly string[];
  readonly preprocessing: Preprocessing | null;
  readonly task: Task;
  readonly precision: string;
  readonly checkpointSha256: string;
  readonly outputs: DeclaredOutputs | null;
  readonly origin: Origin | null;
  readonly typicalInput: TypicalInput | null;
  readonly cascade: Cascade | null;
  readonly chosenScores: ChosenScores | null;
  readonly trace: readonly TraceLayer[] | null;
}

/**
 * Read the properties of a file; null if none of them is capsedge's.
 *
 * @throws CapsedgeError `metadata` if they are damaged, contradict themselves or have another schema, `limit`
 *   if they are too large.
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
  if (ours.reduce((sum, [, text]) => sum + text.length, 0) > limits.metadataBytes) {
    throw new Malformed(`it has over ${limits.metadataBytes} bytes`, true);
  }
  const texts = new Map(ours.map(([key, text]) => [key.slice(PREFIX.length), text]));
  checkSchema(texts.get("schema") ?? "null");
  texts.delete("schema");
  const found = checked(new Map([...texts].map(([name, text]) => [name, parsed(name, text, limits)])), limits);
  checkWhole(found);
  return found;
}

/** Refuse a different schema before reporting its unknown fields. */
function checkSchema(text: string): void {
  const schema = integer(named("schema", text), "schema");
  if (schema === SCHEMA) return;
  throw new CapsedgeError(
    "metadata",
    `The model's metadata has another schema: ${schema}; this version of capsedge reads ${SCHEMA}.`,
    "Export the model again, or install the capsedge that made it.",
  );
}

function parsed(name: string, text: string, limits: Limits): Json {
  const own = Object.hasOwn(TEXT_LIMITS, name) ? TEXT_LIMITS[name as keyof typeof TEXT_LIMITS] : undefined;
  const bytes = own && limits[own];
  if (bytes !== undefined && characters(text) > bytes) throw new Malformed(`'${name}' has over ${bytes} bytes`, true);
  return named(name, text);
}

/** The values in a text; errors give its name. */
function named(name: string, text: string): Json {
  try {
    return parseJson(text);
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    throw new Malformed(`'${short(name)}': ${error.message}`, error.tooLarge);
  }
}

function checked(values: Map<string, Json>, limits: Limits): Metadata {
  const m = metadataFields(values, "");
  const task = oneOf(TASK_WORDS, m.task, "task");
  if (m.class_names.length > WIDTH) throw new Malformed(`there are over ${WIDTH} classes`, true);
  checkNames(m.class_names, "a class name");
  if (Math.abs(m.iterations + 0.5) > 2 ** 31) throw new Malformed(`iterations ${m.iterations}`);
  return {
    architecture: m.architecture,
    routing: m.routing,
    iterations: m.iterations,
    classNames: m.class_names,
    preprocessing: m.preprocessing && checkedPreprocessing(m.preprocessing, limits),
    task,
    precision: m.precision,
    checkpointSha256: m.checkpoint_sha256,
    outputs: m.outputs === null && isClassification(task) ? null : declaredOutputs(m.outputs, task, m.class_names),
    origin: m.origin && originOf(m.origin),
    typicalInput: m.typical_input && typicalInputOf(m.typical_input),
    cascade: m.cascade && cascadeOf(m.cascade),
    trace: m.trace && traceOf(m.trace),
    chosenScores: m.chosen_scores && chosenScoresOf(m.chosen_scores),
  };
}

type Outputs = ReturnType<typeof outputsFields>;

/** The outputs, checked for consistency with each other and the task. */
function declaredOutputs(found: Outputs | null, task: Task, classNames: readonly string[]): DeclaredOutputs {
  const o = found ?? outputsFields(new Map(), "outputs");
  const ofValues = [o.values, o.names, o.units].some((each) => each.length > 0);
  const ofScores = [o.scores, o.kind, o.poses].some(Boolean);
  if (task === "regression") checkRegression(o, ofScores || classNames.length > 0);
  else if (!o.scores || ofValues) {
    const kind = task === "segmentation" ? task : "classification";
    throw new Malformed(`a ${kind} has an output for scores, and no values`);
  } else if (task === "segmentation" && o.poses) throw new Malformed("a segmentation has no output for poses");
  const named = [o.scores, o.poses].filter(Boolean).concat(o.values);
  if (new Set(named).size < named.length || o.values.includes("")) {
    throw new Malformed("an output is named twice, or has no name");
  }
  if (o.values.length > RUN_TENSORS) throw new Malformed(`the values are in over ${RUN_TENSORS} outputs`, true);
  if (o.names.length > WIDTH) throw new Malformed(`there are over ${WIDTH} values`, true);
  checkNames([...o.names, ...o.units], "a name or unit");
  return { ...o, kind: task === "regression" ? "" : oneOf(SCORE_KIND_WORDS, o.kind, "kind of scores") };
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

function isClassification(task: Task): boolean {
  return task === "single-label" || task === "multi-label";
}

/** Checks that concern several fields. */
function checkWhole({ preprocessing: p, typicalInput, cascade, task, classNames }: Metadata): void {
  if (typicalInput && p === null) throw new Malformed("typical_input needs the preprocessing of images");
  if (typicalInput && p && Math.min(p.height, p.width) < LEAST_SIDE) {
    throw new Malformed(`typical_input needs ${LEAST_SIDE} pixels a side`);
  }
  if (task === "segmentation" && classNames.length && (classNames.length < 2 || classNames.length > UNKNOWN)) {
    throw new Malformed(`a segmentation has 2 to ${UNKNOWN} classes`);
  }
  if (cascade && !isClassification(task)) {
    throw new Malformed(`a ${task} has no classes of images, so it cannot be a cascade`);
  }
}
