/** @NAME@, a capsule network in WebAssembly, written by capsedge. No library is needed, and no data leaves the page. */

const SCHEMA = @SCHEMA@;
/** The least, and what is wanted. */
const ARGUMENTS = {
  // spec: arguments
  top: [1, "a whole number of at least 1"],
  classIndex: [0, "a whole number of at least 0"],
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
   * @param {Uint8Array | Uint8ClampedArray | ImageData} pixels grey or interleaved RGB; of an ImageData, colours are put
   *   on black, and grey networks get their luma in 8 bits.
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
   */
  run(input) {
    const { input: wanted, preprocessing } = this.description;
    const first = isBytes(input) ? "prepare the pixels first" : "pass what prepare returns";
    checkFloats("input", input, wanted.size, first);
    if (preprocessing) checkRange(input, preprocessing);
    this.#write("input", input, wanted.size);
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
    if (classIndex >= classes) throw new RangeError(`There is no class ${classIndex}.`);
    checkFloats("pose", pose, size, "pass a Float32Array");
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

function nameOf(value) {
  if (value === undefined) return "missing";
  if (typeof value === "string") return "a text";
  if (typeof value !== "object" || !value) return String(value);
  const kind = value.constructor?.name ?? "Object";
  return `${/^[AEIO]/.test(kind) ? "an" : "a"} ${kind}`;
}

function checkArgument(name, value) {
  const [least, wanted] = ARGUMENTS[name];
  if (!(Number.isInteger(value) && value >= least)) throw new RangeError(`${name} is ${nameOf(value)}: it takes ${wanted}.`);
}

function checkFloats(name, values, size, advice) {
  if (!(values instanceof Float32Array)) throw new TypeError(`The ${name} is ${nameOf(values)}: ${advice}.`);
  if (values.length !== size) throw new RangeError(`The ${name} has ${values.length} values: pass ${size}.`);
  if (!values.every((v) => Math.abs(v) < 2 ** 32)) throw new RangeError(`The ${name} has values that are not finite.`);
}

function checkRange(input, { height, width, channels, scale, mean, std, per_image }) {
  const of = (level, c) => (level * scale - (mean[c] ?? mean[0])) / (std[c] ?? std[0]);
  const most = Math.sqrt(height * width * channels);
  const ends = per_image === "standardize" ? [-most, most] : [0, 255].flatMap((v) => Array.from({ length: channels }, (_, c) => of(v, c)));
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const slack = 1e-3 * (high - low);
  if (!input.every((v) => low - slack <= v && v <= high + slack))
    throw new RangeError(`The input has values outside ${low} to ${high}: prepare the pixels first.`);
}

/** RGBA on black as the network's channels, in 8 bits. */
function levels(image, { width: w, height: h, channels }) {
  const { data, width, height } = typeof image === "object" && image ? image : {};
  if (!isBytes(data)) {
    throw new TypeError(`The pixels are ${nameOf(data ?? image)}: pass a Uint8Array of grey or RGB levels, or an ImageData.`);
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
