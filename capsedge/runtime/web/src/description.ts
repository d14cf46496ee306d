/** The metadata of a file, checked, with every text printable. */
import type { OutputRoles } from "./outputs.js";
import type { PoseDecoder } from "./decoder.js";
import type { Port } from "./graph.js";
import { WIDTH, type ScoreKind, type Task } from "./generated/spec.js";
import type { Metadata } from "./metadata.js";
import type { OnnxSummary } from "./onnx-file.js";
import { declaredRange, type Preprocessing } from "./preprocessing.js";
import type { Cascade, TypicalInput, Origin, TraceLayer } from "./declared-fields.js";
import { printable } from "./text.js";

/** The metadata of a file. Texts are plain single lines without control or reordering characters. */
export interface Description {
  /** Name of the file, if known. */
  readonly file: string;
  readonly bytes: number;
  /** The tool that wrote the file, with its version. */
  readonly producer: string;
  /** `capsnet`, `matrix-capsules`, `attention-capsules`, or the class of a user's module. */
  readonly architecture: string;
  /** The routing: `dynamic`, `em` or `attention`; empty if not stated. */
  readonly routing: string;
  /** 0 if not stated. */
  readonly iterations: number;
  readonly task: Task;
  /** `fp32`, `fp16`, `int8` or `mixed`. */
  readonly precision: string;
  /** The checkpoint's checksum; empty if there was no checkpoint. */
  readonly checkpointSha256: string;
  /** A label for each class, its number if the file gives none; empty for regressions and for over 65,536 numbers. */
  readonly labels: readonly string[];
  /** The values that a regression estimates. */
  readonly values: readonly { readonly name: string; readonly unit: string }[];
  /** What the scores are: capsule lengths or probabilities; empty for a regression. */
  readonly scoreKind: Exclude<ScoreKind, "logits"> | "";
  /** The graph's input. */
  readonly input: { readonly name: string; readonly type: string; readonly shape: readonly (number | null)[] };
  /** How an image becomes the input; null if the file does not state it. */
  readonly preprocessing: Preprocessing | null;
  /** The lowest and the highest value of the input. */
  readonly range: readonly [number, number] | null;
  /** The numbers of class capsules and of elements per pose; null without poses, or if the file leaves them open. */
  readonly capsules: { readonly classes: number; readonly size: number } | null;
  /** Whether `decode` works. */
  readonly hasDecoder: boolean;
  /** The layers in the trace, in routing order; null if the file has no trace. */
  readonly trace: readonly Omit<TraceLayer, "outputs">[] | null;
  readonly origin: Origin | null;
  readonly cascade: Cascade | null;
  readonly typicalInput: TypicalInput | null;
  /** Number of nodes in the graph, including its functions. */
  readonly nodes: number;
  /** The kinds of capsule operators. */
  readonly operators: readonly string[];
}

/** The sources of the description. */
export interface Known {
  file: string;
  bytes: number;
  summary: Pick<OnnxSummary, "producer" | "producerVersion" | "operators" | "nodes">;
  metadata: Metadata;
  roles: OutputRoles;
  input: Port;
  outputs: readonly Port[];
  decoder: PoseDecoder | string;
}

/** The description of a file that has been checked. */
export function describe(known: Known): Description {
  const { summary, metadata: m, roles } = known;
  const capsuleNodes = summary.operators.filter((node) => node.domain === "capsedge");
  return {
    file: printable(known.file),
    bytes: known.bytes,
    producer: [summary.producer, summary.producerVersion].filter(Boolean).join(" "),
    architecture: printable(m.architecture),
    routing: printable(m.routing),
    iterations: m.iterations,
    task: m.task,
    precision: printable(m.precision),
    checkpointSha256: printable(m.checkpointSha256),
    labels: labelsOf(m, outputOf(known, roles.scores)),
    values: (m.outputs?.names ?? []).map((name, k) => ({
      name: printable(name),
      unit: printable(m.outputs?.units[k] ?? ""),
    })),
    scoreKind: roles.kind === "logits" ? "probability" : roles.kind,
    input: { name: printable(known.input.name), type: known.input.type, shape: known.input.shape },
    preprocessing: m.preprocessing,
    range: m.preprocessing && declaredRange(m.preprocessing),
    capsules: capsulesOf(outputOf(known, roles.poses)),
    hasDecoder: typeof known.decoder !== "string",
    trace: m.trace?.map(({ outputs: _, ...layer }) => layer) ?? null,
    origin: m.origin,
    cascade: m.cascade,
    typicalInput: m.typicalInput,
    nodes: summary.nodes,
    operators: [...new Set(capsuleNodes.map((node) => printable(node.type).replace(/_\d+$/, "")))].sort(),
  };
}

function outputOf(known: Known, name: string): Port | undefined {
  return name ? known.outputs.find((port) => port.name === name) : undefined;
}

function labelsOf(m: Metadata, scores: Port | undefined): string[] {
  if (m.classNames.length) return m.classNames.map(printable);
  const count = scores?.shape[1] ?? 0;
  return Array.from({ length: count > WIDTH ? 0 : count }, (_, k) => String(k));
}

function capsulesOf(poses: Port | undefined): Description["capsules"] {
  const [, classes, ...pose] = poses?.shape ?? [];
  if (typeof classes !== "number" || pose.includes(null)) return null;
  return { classes, size: pose.reduce<number>((size, d) => size * (d ?? 1), 1) };
}
