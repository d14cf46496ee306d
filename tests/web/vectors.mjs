// Reads the files of spec/vectors with the npm package; prints a line for each case that it reads otherwise.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { CapsedgeError, LIMITS, load } from "capsedge";
import { parseJson } from "./capsedge/dist/json.js";
import { checkFile } from "./capsedge/dist/load.js";
import { readMetadata } from "./capsedge/dist/metadata.js";
import { checkHarmless, summarize } from "./capsedge/dist/onnx-file.js";
import { pixelsOf } from "./capsedge/dist/pixels.js";
import { prepare } from "./capsedge/dist/prepare.js";
import { preprocessingFields } from "./capsedge/dist/generated/metadata.js";
import { checkedPreprocessing } from "./capsedge/dist/preprocessing.js";
import { printable } from "./capsedge/dist/text.js";

const METADATA = 14; // the field of ModelProto
const [, , folder, part] = process.argv; // part: `read`; or `predict` or `segment`, which run files
const read = (name) => JSON.parse(readFileSync(`${folder}/${name}`, "utf8"));

/** A text, or its parts, of which `[part, count]` stands `count` times. */
function expanded(text) {
  const parts = typeof text === "string" ? [text] : text;
  return parts.map((part) => (typeof part === "string" ? part : part[0].repeat(part[1]))).join("");
}

function properties(base, change) {
  const texts = new Map(Object.entries({ ...base, ...change.set }).map(([key, value]) => [key, JSON.stringify(value)]));
  for (const [key, members] of Object.entries(change.merge ?? {})) {
    texts.set(key, JSON.stringify({ ...JSON.parse(texts.get(key)), ...members }));
  }
  for (const [key, text] of Object.entries(change.text ?? {})) texts.set(key, expanded(text));
  for (const path of change.without ?? []) {
    const [key, member] = path.split("/");
    const { [member]: _, ...left } = member ? JSON.parse(texts.get(key)) : {};
    if (member) texts.set(key, JSON.stringify(left));
    else texts.delete(key);
  }
  return texts;
}

function varint(value) {
  const bytes = [];
  let left = value;
  for (; left >= 128; left = Math.floor(left / 128)) bytes.push((left % 128) | 128);
  return Buffer.from([...bytes, left]);
}

/** A field of a protobuf message: a number as a varint, text and bytes with their length. */
function field(number, value) {
  if (typeof value === "number") return Buffer.concat([varint(number * 8), varint(value)]);
  const bytes = Buffer.from(value);
  return Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
}

/** A message of `[number, value]`, where a list as a value is a message, and of bytes as they are, in hexadecimal. */
function message(parts) {
  const one = (part) => {
    if (typeof part === "string") return Buffer.from(part, "hex");
    const [number, value] = part;
    return field(number, Array.isArray(value) ? message(value) : value);
  };
  return Buffer.concat(parts.map(one));
}

function described(graph, texts) {
  const entries = [...texts].map(([key, text]) =>
    field(
      METADATA,
      message([
        [1, key],
        [2, text],
      ]),
    ),
  );
  return new Uint8Array(Buffer.concat([Buffer.from(graph, "base64"), ...entries]));
}

/** What is read, by the names of the metadata. */
function values(data) {
  const { metadata: m, roles } = checkFile(data, LIMITS);
  const { perImage, ...preprocessing } = m.preprocessing ?? {};
  const { frameLevel, frameContrast, ...typical } = m.typicalInput ?? {};
  const { fileSha256, ...origin } = m.origin ?? {};
  const { madeOf, ...chosenScores } = m.chosenScores ?? {};
  return {
    architecture: m.architecture,
    routing: m.routing,
    iterations: m.iterations,
    task: m.task,
    precision: m.precision,
    checkpoint_sha256: m.checkpointSha256,
    class_names: m.classNames,
    preprocessing: m.preprocessing && { ...preprocessing, per_image: perImage },
    scores: roles.scores,
    poses: roles.poses,
    score_kind: roles.kind === "logits" ? "probability" : roles.kind,
    values: (m.outputs?.names ?? []).map((name, k) => [name, m.outputs.units[k]]),
    typical_input: m.typicalInput && { ...typical, frame_level: frameLevel, frame_contrast: frameContrast },
    origin: m.origin && { ...origin, file_sha256: fileSha256 },
    cascade: m.cascade,
    trace: m.trace && m.trace.map(({ outputs, childGrid, typesFirst, ...layer }) => ({
      ...layer,
      outputs: Object.fromEntries(outputs),
      child_grid: childGrid,
      types_first: typesFirst,
    })),
    chosen_scores: m.chosenScores && { ...chosenScores, made_of: madeOf },
  };
}

/** Equal; of an object, what the vectors state of it, of a long text or list its length. */
function same(wanted, found) {
  if (Array.isArray(wanted)) {
    return Array.isArray(found) && found.length === wanted.length && wanted.every((each, k) => same(each, found[k]));
  }
  if (wanted !== null && typeof wanted === "object") {
    return (
      found !== null && typeof found === "object" && Object.keys(wanted).every((key) => same(wanted[key], found[key]))
    );
  }
  if (typeof wanted === "number" && (typeof found === "string" || Array.isArray(found)))
    return [...found].length === wanted;
  return wanted === found;
}

function merged(base, changes) {
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const one = ([key, value]) => [key, isObject(value) && isObject(base[key]) ? { ...base[key], ...value } : value];
  return { ...base, ...Object.fromEntries(Object.entries(changes).map(one)) };
}

function verdictOf(group, change) {
  const said = change.except?.typescript ?? ("refused" in change ? group.except?.typescript : undefined);
  return said ?? change;
}

/** How the package disagrees with a case; empty if it does not. */
function fault(verdict, base, data) {
  let found;
  try {
    found = verdict.accepted === null ? readMetadata(summarize(data, LIMITS).metadata, LIMITS) : values(data);
  } catch (error) {
    if (!(error instanceof CapsedgeError)) return `${error.name}: ${error.message}`;
    const why = typeof verdict.why === "object" ? verdict.why.typescript : verdict.why;
    const expected = error.code === verdict.refused && error.message.includes(why);
    return expected ? "" : `${error.code}: ${error.message} for ${verdict.refused}: ${why}`;
  }
  if ("refused" in verdict) return "accepted";
  if (verdict.accepted === null) return found === null ? "" : "it states something";
  const wanted = Object.entries(merged(base, verdict.accepted)).filter(([key, value]) => !same(value, found[key]));
  return wanted
    .map(([key, value]) => `${key} is ${JSON.stringify(found[key])} for ${JSON.stringify(value)}`)
    .join("; ");
}

/** What is in a file, sorted; null where it is refused. */
function factsOf(data) {
  let summary;
  try {
    summary = summarize(data, LIMITS);
    checkHarmless(summary);
    return facts(summary, []);
  } catch (error) {
    if (!(error instanceof CapsedgeError)) throw error;
    return summary ? facts(summary, [["harmful", "", ""]]) : null;
  }
}

function facts(summary, more) {
  const found = [
    ...summary.external.map((name) => ["external", name, ""]),
    ...summary.operators.map(({ domain, type }) => ["operator", domain, type]),
    ...summary.functions.map(({ domain, type }) => ["function", domain, type]),
    ...[...summary.metadata].map(([key, value]) => ["metadata", key, value]),
    ...more,
  ];
  return [...new Set(found.map((fact) => JSON.stringify(fact)))].sort();
}

async function digestOf({ height, width, invert, preprocessing }) {
  const p = checkedPreprocessing(preprocessingFields(parseJson(JSON.stringify(preprocessing)), "preprocessing"), LIMITS);
  const data = Uint8Array.from({ length: height * width * 4 }, (_, i) => Math.floor((i * i * 7 + i * 13) / 8) & 255);
  const input = prepare(await pixelsOf({ data, width, height, channels: 4 }, p, LIMITS), p, invert);
  return createHash("sha256").update(input).digest("hex");
}

async function answerOf(session, pixels, { top_k: top, threshold }) {
  try {
    const image = { data: Uint8Array.from(pixels), width: pixels.length, height: 1, channels: 1 };
    const found = await session.predict(image, { top, threshold });
    return {
      labels: found.ranking.map(({ label }) => label),
      scores: [...found.scores],
      score_kind: session.description.scoreKind,
      poses: [...found.poses.data],
      values: found.values.map(({ name, value, unit }) => [name, value, unit]),
    };
  } catch (error) {
    if (!(error instanceof CapsedgeError)) throw error;
    return { refused: error.code };
  }
}

/** Equal; numbers within the rounding of FP32. */
function alike(wanted, found) {
  if (Array.isArray(wanted))
    return Array.isArray(found) && found.length === wanted.length && wanted.every((each, k) => alike(each, found[k]));
  if (typeof wanted !== "number") return wanted === found;
  return Math.abs(wanted - found) <= 1e-9 + 1e-6 * Math.abs(wanted);
}

const faults = [];
let count = 0;
function check(name, wrong) {
  if (wrong) faults.push(`${name}: ${wrong}`);
  count += 1;
}

async function readAll() {
  const metadata = read("metadata.json");
  for (const group of metadata.groups) {
    const base = metadata.bases[group.base];
    for (const change of group.cases) {
      const data = described(metadata.graphs[change.graph ?? "open"], properties(base.properties, change));
      check(`${group.about} / ${change.name}`, fault(verdictOf(group, change), base.values, data));
    }
  }
  for (const { name, file, facts: wanted } of read("files.json").cases) {
    const found = JSON.stringify(factsOf(new Uint8Array(message(file))));
    const plain = wanted?.map(([kind, a, b]) => JSON.stringify([kind, kind === "harmful" ? "" : a, b]));
    const expected = JSON.stringify(plain?.sort() ?? null);
    check(`files.json / ${name}`, found === expected ? "" : `${found} for ${expected}`);
  }
  for (const { name, text, shown } of read("text.json").cases) {
    check(`text.json / ${name}`, printable(text) === shown ? "" : printable(text));
  }
  for (const [index, image] of read("images.json").cases.entries()) {
    const found = await digestOf(image);
    check(`images.json / ${index}`, found === image.sha256 ? "" : found);
  }
}

async function predictAll() {
  const predictions = read("predictions.json");
  const ort = await import("onnxruntime-web");
  const sessions = new Map();
  for (const [base, { graph, properties: stated }] of Object.entries(predictions.bases)) {
    const data = described(predictions.graphs[graph], properties(stated, {}));
    sessions.set(base, await load(data, { runtime: ort, threads: 1 }));
  }
  for (const { name, base, pixels, options, ...wanted } of predictions.cases) {
    const found = await answerOf(sessions.get(base), pixels, options ?? {});
    const right = Object.entries(wanted).every(([key, value]) => alike(value, found[key]));
    check(`predictions.json / ${base} / ${name}`, right ? "" : `${JSON.stringify(found)} for ${JSON.stringify(wanted)}`);
  }
}

/** The rows of a mask as text, `.` for an unknown pixel; null where the image or an option is refused. */
async function maskOf(session, [height, width], { top_k: top, threshold }) {
  const data = Uint8Array.from({ length: height * width }, (_, i) => Math.floor((i * i * 7 + i * 13) / 8) & 255);
  try {
    const { mask } = await session.predict({ data, width, height, channels: 1 }, { top, threshold });
    const row = (y) => [...mask.data.subarray(y * width, (y + 1) * width)].map((v) => (v === 255 ? "." : v)).join("");
    return Array.from({ length: mask.height }, (_, y) => row(y));
  } catch (error) {
    if (error.code !== "input") throw error;
    return null;
  }
}

async function segmentAll() {
  const masks = read("masks.json");
  const ort = await import("onnxruntime-web");
  for (const { base, size, options, mask } of masks.cases) {
    const { graph, properties: stated } = masks.bases[base];
    const data = described(masks.graphs[graph], properties(stated, {}));
    const session = await load(data, { runtime: ort, threads: 1 });
    const found = JSON.stringify(await maskOf(session, size, options ?? {}));
    const wanted = JSON.stringify(mask ?? null);
    check(`masks.json / ${base} / ${size} ${JSON.stringify(options)}`, found === wanted ? "" : `${found} for ${wanted}`);
    await session.close();
  }
}

await { predict: predictAll, segment: segmentAll, read: readAll }[part]();
console.log([...faults, `${count} cases`].join("\n"));
