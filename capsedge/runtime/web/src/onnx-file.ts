/**
 * A first check of an ONNX file, before its bytes reach ONNX Runtime.
 *
 * The whole file is walked by the schema of `wire.ts`, skipping weights. On the way, everything that decides whether
 * the file may run is collected: metadata, operators, functions, external data. Works like `structure.py`.
 */
import { CapsedgeError, Malformed } from "./errors.js";
import { identify } from "./formats.js";
import {
  WIRE_DEPTH,
  MODEL_IR,
  MODEL_PRODUCER,
  MODEL_PRODUCER_VERSION,
  MODEL_GRAPH,
  MODEL_METADATA,
  NODE_INPUT,
  NODE_TYPE,
  NODE_DOMAIN,
  NODE_OVERLOAD,
  TENSOR_NAME,
  TENSOR_EXTERNAL,
  TENSOR_LOCATION,
  FUNCTION_NAME,
  FUNCTION_DOMAIN,
  FUNCTION_OVERLOAD,
  ENTRY_KEY,
  ENTRY_VALUE,
  DOMAIN,
  DOMAINS,
  COMPILED,
  ORT_FORMAT,
} from "./generated/spec.js";
import type { Limits } from "./limits.js";
import { grouped, printable, short } from "./text.js";
import { MODEL, Wire, isNarrow, type Field, type FieldType, type MessageType } from "./wire.js";

/** An operator or a function: domain (empty for `ai.onnx`), type, and the overload if it is capsedge's. */
export interface Operator {
  domain: string;
  type: string;
  overload: string;
}

/** The parts of an ONNX file that the checks need. */
export interface OnnxSummary {
  producer: string;
  producerVersion: string;
  /** The file's properties by name. */
  metadata: Map<string, string>;
  /** Every kind of node once, including those in functions and nested graphs. */
  operators: Operator[];
  functions: Operator[];
  /** Types of capsedge's nodes that have an unnamed input. */
  unnamedInputs: Set<string>;
  /** Number of nodes. */
  nodes: number;
  /** Names of tensors whose data is stored in another file. */
  external: string[];
}

/**
 * Walk an ONNX file.
 *
 * @throws CapsedgeError `file` if the bytes are not an ONNX model, `limit` if it is too large.
 */
export function summarize(data: Uint8Array, limits: Limits): OnnxSummary {
  if (data.length > limits.fileBytes) {
    throw new CapsedgeError(
      "limit",
      `The file has ${grouped(data.length)} bytes; the limit is ${grouped(limits.fileBytes)}.`,
      "Check that it is the right file.",
    );
  }
  if (data.length === 0) {
    throw new CapsedgeError("file", "The file is empty.", "Fetch it again, or export it again with `capsedge export`.");
  }
  try {
    return new Walker(data, limits).model();
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    const format = identify(data);
    if (format) throw new CapsedgeError("file", `The file is not an ONNX file: it is ${format.name}.`, format.hint);
    throw new CapsedgeError(
      error.tooLarge ? "limit" : "file",
      `The file is not a complete ONNX file: read as one, ${error.message}.`,
      "Fetch it again, or export the model again with `capsedge export`.",
      { cause: error },
    );
  }
}

/**
 * Refuse a file that would make ONNX Runtime open other files, run operators it does not have, or crash.
 *
 * @throws CapsedgeError `file`.
 */
export function checkHarmless(summary: OnnxSummary): void {
  const [outside] = summary.external;
  if (outside !== undefined) {
    throw new CapsedgeError(
      "file",
      `The file keeps weights in other files: ${grouped(summary.external.length)} tensors are external, the first is '${short(outside)}'.`,
      "Save it as one file: `onnx.save(onnx.load(path), path, save_as_external_data=False)`.",
    );
  }
  if (summary.operators.some((node) => node.type === COMPILED)) {
    throw new CapsedgeError(
      "file",
      `The file has ${COMPILED} nodes, which hold or name code compiled for one device.`,
      "Use the ONNX file that they were compiled from.",
    );
  }
  const [unnamed] = [...summary.unnamedInputs].sort();
  if (unnamed !== undefined) {
    throw new CapsedgeError(
      "file",
      `The file has a ${short(unnamed)} node with an unnamed input.`,
      "Export the model again, or remove the empty names at the end of the node's inputs.",
    );
  }
  const own = new Set(summary.functions.map((f) => `${f.domain}\0${f.type}`));
  const foreign = summary.operators.filter(
    (node) => !DOMAINS.includes(node.domain) && !own.has(`${node.domain}\0${node.type}`),
  );
  const first = foreign[0];
  if (first) {
    throw new CapsedgeError(
      "file",
      `The file has operators of the domain '${short(first.domain)}', such as ${short(first.type)}.`,
      `Export the model again without them. Known domains: ${DOMAINS.slice(1).join(", ")}, and functions of the file itself.`,
    );
  }
}

/**
 * Refuse capsule operators without a function body: there is no operator library in a browser.
 *
 * @throws CapsedgeError `file`.
 */
export function checkBodies(summary: OnnxSummary): void {
  const bodies = new Set(summary.functions.map((f) => `${f.domain}\0${f.type}\0${f.overload}`));
  const bare = summary.operators.filter(
    (n) => n.domain === DOMAIN && !bodies.has(`${n.domain}\0${n.type}\0${n.overload}`),
  );
  if (bare.length) {
    const names = [...new Set(bare.map((n) => short(n.type)))].sort().slice(0, 8).join(", ");
    throw new CapsedgeError(
      "file",
      `The file runs only with the operator library of capsedge: its ${names} nodes have no function body.`,
      "Export it again with `capsedge export --ops auto`.",
    );
  }
}

/** The contents of a message's fields, keeping the last field of each number. */
type Found = Map<number, Field>;

class Walker extends Wire {
  private readonly metadata = new Map<string, string>();
  private readonly operators = new Map<string, Operator>();
  private readonly functions: Operator[] = [];
  private readonly external: string[] = [];
  private readonly unnamedInputs = new Set<string>();
  private nodes = 0;
  private entered = 0;

  constructor(
    data: Uint8Array,
    private readonly limits: Limits,
  ) {
    super(data, limits.fields);
  }

  model(): OnnxSummary {
    if (String.fromCharCode(...this.data.subarray(4, 8)) === ORT_FORMAT) {
      throw new Malformed("it is also a file of ONNX Runtime's own format");
    }
    const found = this.walk(MODEL, 0, this.data.length, 0);
    if (!found.has(MODEL_GRAPH) || !found.get(MODEL_IR)?.value) throw new Malformed("it has no graph");
    return {
      producer: printable(this.textOf(found, MODEL_PRODUCER)),
      producerVersion: printable(this.textOf(found, MODEL_PRODUCER_VERSION)),
      metadata: this.metadata,
      operators: [...this.operators.values()],
      functions: this.functions,
      unnamedInputs: this.unnamedInputs,
      nodes: this.nodes,
      external: this.external,
    };
  }

  private walk(message: MessageType, start: number, end: number, depth: number): Found {
    if (depth > WIRE_DEPTH) throw new Malformed(`its messages are nested more than ${WIRE_DEPTH} deep`, true);
    if (++this.entered > this.limits.messages) {
      throw new Malformed(`it has more than ${grouped(this.limits.messages)} messages`, true);
    }
    const found: Found = new Map();
    let stood = 0;
    for (const field of this.fields(start, end)) {
      const type = typeOf(message, field);
      if (stood & type.once) throw new Malformed(`a ${message.name} has its field ${field.number} twice`);
      stood |= type.once;
      if (type.narrow && !isNarrow(field)) {
        throw new Malformed(`a ${message.name} has a number of over 32 bits in field ${field.number}`);
      }
      found.set(field.number, field);
      if (type.message) this.take(message, type, this.walk(type.message, field.start, field.end, depth + 1), field);
    }
    return found;
  }

  private take(parent: MessageType, type: FieldType, found: Found, within: Field): void {
    const name = type.message?.name;
    if (name === "NodeProto") this.node(found, within);
    else if (name === "TensorProto") this.tensor(found);
    else if (name === "FunctionProto") this.function(found);
    else if (parent === MODEL && type.number === MODEL_METADATA) {
      this.metadata.set(this.textOf(found, ENTRY_KEY), this.textOf(found, ENTRY_VALUE));
    }
  }

  private node(found: Found, within: Field): void {
    if (++this.nodes > this.limits.nodes)
      throw new Malformed(`it has more than ${grouped(this.limits.nodes)} nodes`, true);
    const domain = this.textOf(found, NODE_DOMAIN);
    const node = {
      domain: domain === "ai.onnx" ? "" : domain,
      type: this.textOf(found, NODE_TYPE),
      overload: domain === DOMAIN ? this.textOf(found, NODE_OVERLOAD) : "",
    };
    this.operators.set(`${node.domain}\0${node.type}\0${node.overload}`, node);
    if (domain !== DOMAIN) return;
    for (const field of this.fields(within.start, within.end)) {
      if (field.number === NODE_INPUT && field.start === field.end) this.unnamedInputs.add(node.type);
    }
  }

  private function(found: Found): void {
    this.functions.push({
      domain: this.textOf(found, FUNCTION_DOMAIN),
      type: this.textOf(found, FUNCTION_NAME),
      overload: this.textOf(found, FUNCTION_OVERLOAD),
    });
  }

  private tensor(found: Found): void {
    // The runtime uses only the location; a tensor has no other reason to name a file.
    if (!found.has(TENSOR_EXTERNAL) && !found.get(TENSOR_LOCATION)?.value) return;
    this.external.push(this.textOf(found, TENSOR_NAME));
  }

  private textOf(found: Found, number: number): string {
    const field = found.get(number);
    return field ? this.text(field.start, field.end) : "";
  }
}

function typeOf(message: MessageType, field: Field): FieldType {
  const type = message.fields.get(field.number * 8 + field.wire);
  if (type) return type;
  throw new Malformed(
    `a ${message.name} has a field ${field.number} of wire type ${field.wire} at byte ${field.start}, which the format lacks`,
  );
}
