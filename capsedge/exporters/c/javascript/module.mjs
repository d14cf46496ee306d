/** @NAME@, a capsule network in WebAssembly, written by capsedge. No library is needed, and no data leaves the page. */

const SCHEMA = @SCHEMA@;
const MAGNITUDE = 2 ** 32; // inputs are smaller
/** What a number of a call may be, from capsedge/spec/web_arguments.py. */
const ARGUMENTS = {
  // spec: arguments
  top: { kind: "whole", least: 1, most: null, wanted: "a whole number of at least 1" },
  classIndex: { kind: "whole", least: 0, most: null, wanted: "a whole number of at least 0" },
  // /spec
};

/**
 * Load the network.
 *
 * @param {string | URL | Response | BufferSource | WebAssembly.Module} [source] `@NAME@.wasm`: its address, its
 *   bytes, or the compiled module, which can be sent to a worker; by default the file beside this module.
 * @returns {Promise<Network>} the network, in a memory of its own.
 * @throws {Error} where the file cannot be read or holds no network.
 */
export async function load(source = new URL("./@NAME@.wasm", import.meta.url)) {
  const module = await compiled(source);
  const [section] = WebAssembly.Module.customSections(module, "@SECTION@");
  const description = section && JSON.parse(new TextDecoder().decode(section));
  if (description?.kind !== "@KIND@" || description.schema !== SCHEMA) {
    throw new Error("The file is no network of this version of `capsedge build --target wasm`.");
  }
  return new Network(module, description, await WebAssembly.instantiate(module));
}

async function compiled(source) {
  if (source instanceof WebAssembly.Module) return source;
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return WebAssembly.compile(source);
  if (source instanceof URL && source.protocol === "file:") {
    const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
    return WebAssembly.compile(await readFile(source));
  }
  const response = source instanceof Response ? source : await fetch(source);
  if (!response.ok) throw new Error(`The network cannot be fetched: the server responded with ${response.status}.`);
  return WebAssembly.compile(await response.arrayBuffer());
}

/** A loaded network. Its calls are synchronous and take no memory but for their results. */
export class Network {
  #exports;

  /** @hidden use `load`. */
  constructor(module, description, instance) {
    this.#exports = instance.exports;
    /** The compiled module, for `load` in another worker. */
    this.module = module;
    /** What the ONNX file states: precision, preprocessing, shapes and meanings of outputs, its checksum, ... */
    this.description = description;
    /** Names of the classes; none for a regression. Plain text: show it with `textContent`. */
    this.labels = description.labels;
    /** Images of a call; 1 unless it was built with another batch. */
    this.batch = description.input.shape[0];
  }

  /**
   * The network's input for pixels of the network's size: the same bits as in Python and C.
   *
   * @param {Uint8Array | Uint8ClampedArray | { data: Uint8ClampedArray, width: number, height: number }} pixels grey or
   *   interleaved RGB; of an ImageData, colours are put on black, and grey networks get their luma in 8 bits.
   * @returns {Float32Array}
   */
  prepare(pixels) {
    const p = this.description.preprocessing;
    if (!p) throw new TypeError("The file does not state its preprocessing: pass a prepared input to run.");
    this.#write("pixels", isBytes(pixels) ? pixels : levels(pixels, p), this.batch * p.height * p.width * p.channels);
    this.#exports.prepare();
    return this.#read("input", this.description.input.size);
  }

  /**
   * Run the network.
   *
   * @param {Float32Array} input in the shape `description.input.shape`, as `prepare` makes it.
   * @returns {Record<string, Float32Array>} every output by its name in C.
   * @throws {TypeError | RangeError} if it is anything else, such as pixels that were not prepared.
   */
  run(input) {
    checkInput(input, this.description.preprocessing);
    this.#write("input", input, this.description.input.size);
    this.#exports.run();
    const read = ({ field, shape }, k) => [field, this.#read("output", product(shape), k)];
    return Object.fromEntries(this.description.outputs.map(read));
  }

  /**
   * Classify one image.
   *
   * @param {Uint8Array | Uint8ClampedArray | ImageData | Float32Array} image pixels as for `prepare`, or its result.
   * @param {number} [top] classes in the ranking.
   * @returns the best class, `{ label, index, score, ranking, outputs }`.
   * @throws {TypeError | RangeError} if an argument is none of these.
   */
  predict(image, top = 1) {
    checkArgument("top", top);
    const { scores, task } = this.description;
    if (!scores || this.batch !== 1) throw new TypeError("predict is for one image and classes: use run.");
    const outputs = this.run(image instanceof Float32Array ? image : this.prepare(image));
    const found = Array.from(scoresOf(outputs[scores.field], scores.kind, task));
    const ranking = found
      .map((score, index) => ({ label: this.labels[index] ?? String(index), index, score }))
      .sort((a, b) => b.score - a.score || a.index - b.index)
      .slice(0, top);
    return { ...ranking[0], ranking, outputs };
  }

  /**
   * Draw what a class capsule stands for.
   *
   * @param {Float32Array} pose of that class.
   * @param {number} classIndex number of the class.
   * @returns {Float32Array} the picture, in the shape `description.reconstruction.picture`.
   */
  reconstruct(pose, classIndex) {
    const decoder = this.description.reconstruction;
    if (!decoder) throw new TypeError("The network was exported without its decoder.");
    const [classes, size] = decoder.capsules;
    checkArgument("classIndex", classIndex);
    if (classIndex >= classes) throw new RangeError(`There is no class ${classIndex}: the last is ${classes - 1}.`);
    if (!(pose instanceof Float32Array)) throw new TypeError(`The pose is ${nameOf(pose)}: pass a Float32Array.`);
    if (pose.length !== size) throw new RangeError(`The pose has ${pose.length} values: pass ${size}.`);
    if (!pose.every((v) => Math.abs(v) < MAGNITUDE)) throw new RangeError("The pose has values that are not finite.");
    const poses = new Float32Array(classes * size);
    poses.set(pose, classIndex * size);
    this.#write("poses", poses, poses.length);
    this.#exports.reconstruct(classIndex);
    return this.#read("picture", product(decoder.picture));
  }

  #write(buffer, values, size) {
    if (values.length !== size) throw new RangeError(`Expected ${size} values of ${buffer}, not ${values.length}.`);
    const Kind = buffer === "pixels" ? Uint8Array : Float32Array;
    new Kind(this.#exports.memory.buffer, this.#exports[buffer](), size).set(values);
  }

  #read(buffer, size, index) {
    return new Float32Array(this.#exports.memory.buffer, this.#exports[buffer](index), size).slice();
  }
}

const product = (shape) => shape.reduce((size, d) => size * d, 1);
const isBytes = (values) => values instanceof Uint8Array || values instanceof Uint8ClampedArray;

/** What a value is, for messages. */
function nameOf(value) {
  if (value === undefined) return "missing";
  if (typeof value === "string") return "a text";
  const kind = typeof value === "object" && value ? (value.constructor?.name ?? "Object") : String(value);
  return typeof value === "object" && value ? `${/^[AEIO]/.test(kind) ? "an" : "a"} ${kind}` : kind;
}

function checkArgument(name, value) {
  const { least, most, wanted } = ARGUMENTS[name];
  if (Number.isInteger(value) && value >= least && value <= (most ?? Infinity)) return;
  throw new RangeError(`${name} is ${nameOf(value)}: it takes ${wanted}.`);
}

/** Refuse what is no prepared input: other types, and values that no pixel becomes. */
function checkInput(input, p) {
  if (!(input instanceof Float32Array)) {
    const pixels = isBytes(input) ? "prepare the pixels first, as run(prepare(pixels))" : "pass what prepare returns";
    throw new TypeError(`The input is ${nameOf(input)}: ${pixels}.`);
  }
  if (!input.every((v) => Math.abs(v) < MAGNITUDE)) throw new RangeError("The input has values that are not finite.");
  if (!p) return;
  const [low, high] = declaredRange(p);
  const slack = 1e-3 * (high - low);
  if (input.every((v) => low - slack <= v && v <= high + slack)) return;
  throw new RangeError(`The input has values outside ${low} to ${high}: prepare the pixels first, in a Uint8Array.`);
}

/** The lowest and the highest value that preprocessing can produce from pixels. */
function declaredRange({ height, width, channels, scale, mean, std, per_image }) {
  const most = Math.sqrt(height * width * channels);
  if (per_image === "standardize") return [-most, most];
  const levels = (level) =>
    Array.from({ length: Math.max(mean.length, std.length) }, (_, c) => {
      return (level * scale - mean[c % mean.length]) / std[c % std.length];
    });
  const ends = [...levels(0), ...levels(255)];
  return [Math.min(...ends), Math.max(...ends)];
}

/** RGBA on black as the network's channels, in 8 bits. */
function levels(image, { width: w, height: h, channels }) {
  const { data, width, height } = typeof image === "object" && image ? image : {};
  if (!isBytes(data)) {
    const what = data === undefined ? image : data;
    const kinds = "a Uint8Array of grey or RGB levels from 0 to 255, or an ImageData";
    throw new TypeError(`The pixels are ${nameOf(what)}: pass ${kinds}.`);
  }
  if (data.length !== 4 * width * height) throw new RangeError(`Expected 4 values a pixel of ${width}x${height}, RGBA.`);
  if (width !== w || height !== h) throw new RangeError(`The image is ${width}x${height}; the network takes ${w}x${h}.`);
  if (channels !== 1 && channels !== 3) throw new TypeError(`The network takes ${channels} channels: pass its pixels.`);
  const values = new Uint8Array(w * h * channels);
  for (let k = 0; k < w * h; k++) {
    const [r, g, b] = [0, 1, 2].map((c) => (data[4 * k + c] * data[4 * k + 3]) / 255);
    if (channels === 1) values[k] = Math.round((19595 * r + 38470 * g + 7471 * b) / 65536);
    else values.set([Math.round(r), Math.round(g), Math.round(b)], 3 * k);
  }
  return values;
}

/** Lengths and probabilities as they are; of logits the softmax, or for several labels the sigmoid. */
function scoresOf(values, kind, task) {
  if (kind !== "logits") return values;
  if (task === "multi-label") return Float64Array.from(values, (v) => 1 / (1 + Math.exp(-v)));
  const most = Math.max(...values);
  const powers = Float64Array.from(values, (v) => Math.exp(v - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}
