/** The main graph of an ONNX file that `summarize` has accepted: its inputs and outputs, nodes and weights. */
import { Malformed } from "./errors.js";
import {
  DIMENSIONS,
  MODEL_GRAPH,
  GRAPH_NODE,
  GRAPH_NAME,
  GRAPH_TENSOR,
  GRAPH_INPUT,
  GRAPH_OUTPUT,
  GRAPH_VALUE,
  NODE_INPUT,
  NODE_OUTPUT,
  NODE_TYPE,
  NODE_ATTRIBUTE,
  NODE_DOMAIN,
  TENSOR_NAME,
  VALUE_NAME,
  VALUE_TYPE,
  TYPE_TENSOR,
  TENSOR_SHAPE,
  SHAPE_DIMENSION,
  DIMENSION_SIZE,
  ELEMENT_TYPE,
  ELEMENT_TYPES,
  ATTRIBUTE_GRAPH,
  ATTRIBUTE_GRAPHS,
} from "./generated/spec.js";
import type { Limits } from "./limits.js";
import { short } from "./text.js";
import { BYTES, Wire, type Field } from "./wire.js";

const HOLDS_GRAPHS: readonly number[] = [ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS];

/** The position of a piece of the file. */
export interface Span {
  start: number;
  end: number;
}

/** An input or output of the graph. */
export interface Port {
  name: string;
  /** The element type, such as `float32`; empty if it is not a tensor or has another type. */
  type: string;
  /** Bytes per element. */
  width: number;
  /** The sizes; null for a free one. */
  shape: (number | null)[];
}

/** A node of the main graph. */
export interface GraphNode {
  span: Span;
  inputs: string[];
  outputs: string[];
  type: string;
  domain: string;
  holdsGraphs: boolean;
}

export class Graph extends Wire {
  name: Span = { start: 0, end: 0 };
  readonly nodes: GraphNode[] = [];
  readonly tensors = new Map<string, Span>();
  /** Descriptions of outputs and intermediate values. */
  readonly values = new Map<string, Span>();
  /** The node that computes each value. */
  readonly makers = new Map<string, GraphNode>();
  /** The inputs, except those that have stored values. */
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  private readonly inputSpans: Span[] = [];
  private readonly outputSpans: Span[] = [];

  /** Throws `Malformed` if a name is not UTF-8, or a shape is too large for any memory. */
  constructor(data: Uint8Array, limits: Limits) {
    super(data, limits.fields);
    for (const graph of this.fields(0, data.length)) {
      if (graph.number !== MODEL_GRAPH) continue;
      for (const field of this.fields(graph.start, graph.end)) this.take(field);
    }
    this.inputs = this.inputSpans.map((span) => this.port(span)).filter((port) => !this.tensors.has(port.name));
    this.outputs = this.outputSpans.map((span) => this.port(span));
  }

  /** The contents of the fields in a message that have a given number. */
  *within(span: Span, number: number): Generator<Field> {
    for (const field of this.fields(span.start, span.end)) if (field.number === number) yield field;
  }

  private take(field: Field): void {
    const span = { start: field.start, end: field.end };
    if (field.number === GRAPH_NAME) this.name = span;
    else if (field.number === GRAPH_NODE) this.addNode(span);
    else if (field.number === GRAPH_TENSOR) this.tensors.set(this.named(span, TENSOR_NAME), span);
    else if (field.number === GRAPH_INPUT) this.inputSpans.push(span);
    else if (field.number === GRAPH_OUTPUT || field.number === GRAPH_VALUE) {
      this.values.set(this.named(span, VALUE_NAME), span);
      if (field.number === GRAPH_OUTPUT) this.outputSpans.push(span);
    }
  }

  private addNode(span: Span): void {
    const node: GraphNode = { span, inputs: [], outputs: [], type: "", domain: "", holdsGraphs: false };
    for (const field of this.fields(span.start, span.end)) {
      if (field.number === NODE_INPUT) node.inputs.push(this.text(field.start, field.end));
      else if (field.number === NODE_OUTPUT) node.outputs.push(this.text(field.start, field.end));
      else if (field.number === NODE_TYPE) node.type = this.text(field.start, field.end);
      else if (field.number === NODE_DOMAIN) node.domain = this.text(field.start, field.end);
      else if (field.number === NODE_ATTRIBUTE) {
        for (const inner of this.fields(field.start, field.end))
          node.holdsGraphs ||= HOLDS_GRAPHS.includes(inner.number);
      }
    }
    this.nodes.push(node);
    for (const output of node.outputs) if (output) this.makers.set(output, node);
  }

  private named(span: Span, number: number): string {
    for (const field of this.within(span, number)) return this.text(field.start, field.end);
    return "";
  }

  private port(span: Span): Port {
    const port: Port = { name: this.named(span, VALUE_NAME), type: "", width: 1, shape: [] };
    for (const type of this.within(span, VALUE_TYPE)) {
      for (const tensor of this.within(type, TYPE_TENSOR)) this.readTensorType(tensor, port);
    }
    return port;
  }

  private readTensorType(tensor: Span, port: Port): void {
    for (const field of this.fields(tensor.start, tensor.end)) {
      if (field.number === ELEMENT_TYPE) [port.type, port.width] = ELEMENT_TYPES[field.value] ?? ["", 1];
      else if (field.number === TENSOR_SHAPE) {
        for (const dimension of this.within(field, SHAPE_DIMENSION)) port.shape.push(this.size(dimension));
        if (port.shape.length > DIMENSIONS)
          throw new Malformed(`'${short(port.name)}' has over ${DIMENSIONS} dimensions`, true);
      }
    }
  }

  private size(dimension: Span): number | null {
    for (const field of this.within(dimension, DIMENSION_SIZE)) {
      if (field.wire !== BYTES && field.high < 2 ** 31) return field.value; // others: -1 for a size unknown to the tool
    }
    return null;
  }
}

/** Whether sizes match the stated ones, some of which may be free. */
export function fits(found: readonly (number | null)[], declared: readonly (number | null)[]): boolean {
  return found.length === declared.length && declared.every((size, k) => size === null || size === found[k]);
}
