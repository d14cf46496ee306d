/** The part of an ONNX file that computes one output from a value of the graph, as its own file. See `decoder.py`. */
import { Malformed } from "./errors.js";
import type { Graph, GraphNode, Span } from "./graph.js";
import {
  DECODER_VIEWS,
  VIEWS,
  MODEL_GRAPH,
  MODEL_METADATA,
  GRAPH_NODE,
  GRAPH_NAME,
  GRAPH_TENSOR,
  GRAPH_INPUT,
  GRAPH_OUTPUT,
  VALUE_NAME,
  VALUE_TYPE,
} from "./generated/spec.js";
import { lengthDelimited } from "./wire.js";

/** The output cannot be computed from the value alone; the message says why. */
export class SubgraphError extends Error {}

/** The name of the new file's input, and the file's pieces in order. */
export interface Subgraph {
  input: string;
  file: Uint8Array;
}

/**
 * The part of a file that computes the output `end` from `start`, which is its only input. If that part reads the value
 * behind `start`, with the same elements in another shape or type, that value is the input.
 *
 * @throws SubgraphError if `end` depends on more than `start`, or the file does not describe the input.
 */
export function extractSubgraph(graph: Graph, start: string, end: string): Subgraph {
  let refused = new SubgraphError(`there is no ${end}`);
  for (const input of sameElements(graph, start)) {
    try {
      const { nodes, read } = between(graph, input, end);
      const described = description(graph, input, start, nodes);
      if (!described) throw new SubgraphError(`the file does not state the shape of '${input}'`);
      return { input, file: assembled(graph, nodes, read, described, end) };
    } catch (error) {
      if (!(error instanceof SubgraphError || error instanceof Malformed)) throw error;
      refused = new SubgraphError(error.message);
    }
  }
  throw refused;
}

/** The value, and the values it merely reshapes or converts, nearest first. */
function sameElements(graph: Graph, name: string): string[] {
  const chain = [name];
  let last = name;
  for (let k = 0; k < DECODER_VIEWS; k++) {
    const maker = graph.makers.get(last);
    const source = maker?.inputs[0];
    if (!maker || !VIEWS.includes(maker.type) || maker.domain || source === undefined) break;
    chain.push(source);
    last = source;
  }
  return chain;
}

/** The nodes that compute `end` from `start`, in order, and the names of what they read. */
function between(graph: Graph, start: string, end: string): { nodes: GraphNode[]; read: Set<string> } {
  const wanted = [end];
  const read = new Set([start, ""]);
  const nodes = new Set<GraphNode>();
  for (let name = wanted.pop(); name !== undefined; name = wanted.pop()) {
    if (read.has(name)) continue;
    read.add(name);
    const maker = graph.makers.get(name);
    if (maker?.holdsGraphs) throw new SubgraphError(`its ${maker.type} node holds a graph`);
    if (maker) {
      nodes.add(maker);
      for (const input of maker.inputs) wanted.push(input);
    } else if (!graph.tensors.has(name)) throw new SubgraphError(`it also depends on '${name}'`);
  }
  return { nodes: graph.nodes.filter((node) => nodes.has(node)), read };
}

/** The description of a value; if it is only reshaped, in the shape of `start`. Null if the file has neither. */
function description(graph: Graph, name: string, start: string, nodes: readonly GraphNode[]): Uint8Array[] | null {
  const own = graph.values.get(name);
  if (own) return [bytes(graph, own)];
  const readers = nodes.filter((node) => node.inputs.includes(name));
  const reshaped = readers.every((node) => node.type === "Reshape" && node.inputs.indexOf(name) === 0);
  const chain = sameElements(graph, start);
  const views = chain.slice(0, chain.indexOf(name)).map((value) => graph.makers.get(value)?.type);
  const shown = graph.values.get(start);
  if (!reshaped || views.includes("Cast") || !shown) return null;
  const types = [...graph.within(shown, VALUE_TYPE)].flatMap((type) =>
    lengthDelimited(VALUE_TYPE, [bytes(graph, type)]),
  );
  return [...lengthDelimited(VALUE_NAME, [new TextEncoder().encode(name)]), ...types];
}

function assembled(
  graph: Graph,
  nodes: readonly GraphNode[],
  read: ReadonlySet<string>,
  described: Uint8Array[],
  end: string,
): Uint8Array {
  const output = graph.values.get(end);
  if (!output) throw new SubgraphError(`there is no ${end}`);
  const piece = (number: number, span: Span) => lengthDelimited(number, [bytes(graph, span)]);
  const weights = [...graph.tensors].filter(([name]) => read.has(name));
  const content = [
    ...nodes.flatMap((node) => piece(GRAPH_NODE, node.span)),
    ...piece(GRAPH_NAME, graph.name),
    ...weights.flatMap(([, span]) => piece(GRAPH_TENSOR, span)),
    ...piece(GRAPH_OUTPUT, output),
    ...lengthDelimited(GRAPH_INPUT, described),
  ];
  const model: Uint8Array[] = [];
  for (const field of graph.fields(0, graph.data.length)) {
    if (field.number === MODEL_GRAPH) model.push(joined(lengthDelimited(MODEL_GRAPH, content)));
    else if (field.number !== MODEL_METADATA) model.push(graph.data.subarray(field.at, field.end));
  }
  return joined(model);
}

function bytes(graph: Graph, span: Span): Uint8Array {
  return graph.data.subarray(span.start, span.end);
}

function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
