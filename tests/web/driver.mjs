// Answers questions from tests, which are JSON and bytes, with a line of JSON and `size` bytes.
import * as ort from "onnxruntime-web";
import { CapsedgeError, LIMITS, load, loadCompiled } from "capsedge";
import { extractSubgraph } from "./capsedge/dist/subgraph.js";
import { Decoder } from "./capsedge/dist/decoder.js";
import { Graph } from "./capsedge/dist/graph.js";
import { parseJson } from "./capsedge/dist/json.js";
import { checkFile } from "./capsedge/dist/load.js";
import { readMetadata } from "./capsedge/dist/metadata.js";
import { measure } from "./capsedge/dist/typical-input.js";
import { checkHarmless, summarize } from "./capsedge/dist/onnx-file.js";
import { pixelsOf } from "./capsedge/dist/pixels.js";
import { prepare } from "./capsedge/dist/prepare.js";
import { preprocessingFields } from "./capsedge/dist/generated/metadata.js";
import { checkedPreprocessing } from "./capsedge/dist/preprocessing.js";
import { fromHalf, toHalf } from "./capsedge/dist/tensors.js";
import { printable } from "./capsedge/dist/text.js";

const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array };
const sessions = new Map();

/** Numbers of a payload, which may lie at any address. */
function numbers(kind, payload) {
  return new ARRAYS[kind](payload.buffer.slice(payload.byteOffset, payload.byteOffset + payload.length));
}

function walk(_, payload) {
  const summary = summarize(payload, LIMITS);
  const facts = [
    ...summary.external.map((name) => ["external", name, ""]),
    ...summary.operators.map(({ domain, type }) => ["operator", domain, type]),
    ...summary.functions.map(({ domain, type }) => ["function", domain, type]),
    ...[...summary.metadata].map(([key, value]) => ["metadata", key, value]),
  ];
  try {
    checkHarmless(summary);
  } catch (error) {
    if (!(error instanceof CapsedgeError)) throw error;
    facts.push(["harmful", "", ""]);
  }
  return { facts };
}

async function prepared({ preprocessing, kind, width, height, channels, invert }, payload) {
  const p = checkedPreprocessing(preprocessingFields(parseJson(preprocessing), "preprocessing"), LIMITS);
  const image = { data: numbers(kind, payload), width, height, ...(channels ? { channels } : {}) };
  const input = prepare(await pixelsOf(image, p, LIMITS), p, invert);
  return [{ measured: measure(input, p) }, input];
}

async function predicted({ id, kind, width, height, channels, options }, payload) {
  const data = numbers(kind, payload);
  const image = width ? { data, width, height, channels } : data;
  const prediction = await sessions.get(id).predict(image, options);
  const arrays = [prediction.scores, prediction.poses.data];
  const trace = prediction.trace?.map((layer) => {
    const kinds = Object.entries(layer).filter(([, value]) => value?.data);
    arrays.push(...kinds.map(([, value]) => value.data));
    const outputs = kinds.map(([name, { dims }]) => [name, dims]);
    return { name: layer.name, routing: layer.routing, iterations: layer.iterations, grid: layer.grid, outputs };
  });
  const sizes = arrays.map((array) => array.length);
  const whole = Float32Array.from(arrays.flatMap((array) => [...array]));
  return [{ ...prediction, scores: null, poses: prediction.poses.dims, trace, sizes }, whole];
}

const OPERATIONS = {
  walk,
  json: ({ text }) => ({ found: String(parseJson(text)) }),
  metadata: ({ properties }) => ({ found: readMetadata(new Map(properties), LIMITS) !== null }),
  checkFile: (_, payload) => ({ inputs: checkFile(payload, LIMITS).input.shape }),
  extractSubgraph: ({ start, end }, payload) => [{}, extractSubgraph(new Graph(payload, LIMITS), start, end).file],
  prepare: prepared,
  printable: ({ text }) => ({ text: printable(text) }),
  toHalf: (_, payload) => [{}, Uint16Array.from(numbers("float32", payload), toHalf)],
  fromHalf: (_, payload) => [{}, Float32Array.from(numbers("uint16", payload), fromHalf)],
  loadCompiled: async ({ id, op: _, ...options }, payload) => {
    sessions.set(id, await loadCompiled(new Uint8Array(payload), options));
    const { description, provider, fallback } = sessions.get(id);
    return { description, provider, fallback };
  },
  load: async ({ id, url, op: _, ...options }, payload) => {
    sessions.set(id, await load(url ?? payload, { runtime: ort, threads: 1, ...options }));
    const { description, provider, fallback } = sessions.get(id);
    return { description, provider, fallback };
  },
  predict: predicted,
  decode: async ({ id, classIndex }, payload) => {
    const found = await sessions.get(id).decode(numbers("float32", payload), classIndex);
    return [{ dims: found.dims }, found.data];
  },
  decoder: (_, payload) => {
    const { graph, roles, outputs } = checkFile(payload, LIMITS);
    const poses = outputs.find(({ name }) => name === roles.poses);
    const found = Decoder.of(graph, poses, { limits: LIMITS });
    return { lacking: typeof found === "string" ? found : "" };
  },
  together: async ({ id, count, width, height }, payload) => {
    const session = sessions.get(id);
    const image = { data: numbers("uint8", payload), width, height, channels: 1 };
    const roles = Array.from({ length: count }, () => session.predict(image));
    const poses = (await roles[0]).poses;
    const pictures = session.description.hasDecoder ? [session.decode(poses), session.decode(poses)] : [];
    const closed = session.close();
    const labels = (await Promise.all(roles)).map(({ label }) => label);
    await Promise.all([...pictures, closed, session.close()]);
    return { labels };
  },
  close: async ({ id }) => {
    await sessions.get(id).close();
    return {};
  },
};

async function prediction(question, payload) {
  try {
    const found = await OPERATIONS[question.op](question, payload);
    return Array.isArray(found) ? found : [found, new Uint8Array(0)];
  } catch (error) {
    const known = error instanceof CapsedgeError;
    return [{ refused: { code: known ? error.code : error.constructor.name, message: error.message, hint: error.hint ?? "" } }, new Uint8Array(0)];
  }
}

const HEAD = 8; // sizes of the question and of its bytes
let pieces = [];
let have = 0;
let need = HEAD;
for await (const piece of process.stdin) {
  pieces.push(piece);
  have += piece.length;
  while (have >= need) {
    const waiting = Buffer.concat(pieces);
    pieces = [waiting];
    const start = HEAD + waiting.readUInt32LE(0);
    const end = start + waiting.readUInt32LE(4);
    need = end;
    if (have < end) break;
    const question = JSON.parse(waiting.subarray(HEAD, start).toString());
    const [found, array] = await prediction(question, new Uint8Array(waiting.subarray(start, end)));
    const bytes = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
    process.stdout.write(`${JSON.stringify({ ...found, size: bytes.length })}\n`);
    process.stdout.write(bytes);
    pieces = [waiting.subarray(end)];
    have -= end;
    need = HEAD;
  }
}
process.exit(0);
