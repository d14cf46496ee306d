/** Calls with wrong arguments; argv: the module of a compiled network. Prints what each call answered, as JSON. */
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [, , which, file] = process.argv;
const pixels = new Uint8Array(28 * 28).map((_, i) => (i % 28 > 12 && i % 28 < 16 && i > 84 && i < 700 ? 255 : 0));
const image = { data: pixels, width: 28, height: 28, channels: 1 };

async function answers(calls) {
  const found = {};
  for (const [name, call] of Object.entries(calls)) {
    try {
      const { label } = await call();
      found[name] = label === undefined ? "ran" : `ran: ${label}`;
    } catch (error) {
      found[name] = `${error.name}${error.code ? ` ${error.code}` : ""}: ${error.message} ${error.hint ?? ""}`.trim();
    }
  }
  return found;
}

async function ofThePackage() {
  const { load, loadCompiled } = await import("capsedge");
  const bytes = await readFile(file);
  const session = await load(bytes);
  const predict = (image, options) => () => session.predict(image, options);
  const raw = (changes) => predict({ ...image, ...changes });
  return answers({
    right: predict(image),
    "every option": predict(image, { top: 2, threshold: 0, invert: false, trace: undefined }),
    "a buffer of Node.js": raw({ data: Buffer.from(pixels) }),
    "a plain array": raw({ data: [...pixels] }),
    doubles: raw({ data: Float64Array.from(pixels) }),
    "an ArrayBuffer": raw({ data: pixels.buffer }),
    "no data": raw({ data: undefined }),
    "pixels alone": predict(pixels),
    "a list": predict([1, 2]),
    nothing: predict(undefined),
    "width as text": raw({ width: "28" }),
    "no width": raw({ width: undefined }),
    "no height": raw({ height: 0 }),
    "channels as text": raw({ channels: "1" }),
    "half a channel": raw({ channels: 1.5 }),
    "misspelt option": predict(image, { treshold: 0.5 }),
    "another option": predict(image, { classes: 3 }),
    "options as a number": predict(image, 3),
    "options null": predict(image, null),
    "top 0": predict(image, { top: 0 }),
    "top as text": predict(image, { top: "3" }),
    "threshold NaN": predict(image, { threshold: NaN }),
    "invert as text": predict(image, { invert: "yes" }),
    "prepare with top": () => session.prepare(image, { top: 3 }),
    "unprepared floats": predict(Float32Array.from(pixels)),
    "class as text": () => session.decode(new Float32Array(16), "1"),
    "load with another option": () => load(bytes, { provider: "wasm" }),
    "providers as text": () => load(bytes, { providers: "wasm" }),
    "no providers": () => load(bytes, { providers: [] }),
    "unknown provider": () => load(bytes, { providers: ["cuda"] }),
    "WebGPU without its module": () => load(bytes, { providers: ["webgpu"] }),
    "runtime as text": () => load(bytes, { runtime: "onnxruntime-web" }),
    "threads as text": () => load(bytes, { threads: "2" }),
    "limits as a number": () => load(bytes, { limits: 5 }),
    "unknown limit": () => load(bytes, { limits: { bytes: 5 } }),
    "compiled with threads": () => loadCompiled(bytes, { threads: 2 }),
  });
}

/** The module around a network that answers with its input. */
async function ofTheModule() {
  const { Network } = await import(pathToFileURL(file).href);
  const memory = new WebAssembly.Memory({ initial: 1 });
  const at = { input: 0, pixels: 8192, output: 16384, poses: 20480, picture: 24576 };
  const float = (address, count) => new Float32Array(memory.buffer, address, count);
  const bytes = () => new Uint8Array(memory.buffer, at.pixels, 784);
  const exports = {
    memory,
    ...Object.fromEntries(Object.entries(at).map(([name, address]) => [name, () => address])),
    prepare: () => float(at.input, 784).set(Float32Array.from(bytes(), (v) => v / 255)),
    run: () => float(at.output, 3).set([0.1, float(at.input, 784).reduce((a, b) => a + b) / 784, 0.2]),
    reconstruct: () => undefined,
  };
  const preprocessing = { height: 28, width: 28, channels: 1, scale: 1 / 255, mean: [0], std: [1], per_image: "" };
  const description = {
    labels: ["a", "b", "c"], task: "single-label", preprocessing, input: { shape: [1, 1, 28, 28], size: 784 },
    outputs: [{ field: "lengths", shape: [1, 3] }], scores: { field: "lengths", kind: "length" },
    reconstruction: { capsules: [3, 4], picture: [1, 1, 2, 2] },
  };
  const network = new Network(null, description, { exports });
  const rgba = new Uint8ClampedArray(4 * 784).fill(255);
  return answers({
    right: () => network.predict(pixels),
    "in two steps": () => network.run(network.prepare(pixels)),
    "an ImageData": () => network.predict({ data: rgba, width: 28, height: 28 }),
    "a ranking": () => network.predict(pixels, 3),
    "pixels to run": () => network.run(pixels),
    "floats of levels": () => network.predict(Float32Array.from(pixels)),
    "NaN": () => network.run(new Float32Array(784).fill(NaN)),
    "a plain array": () => network.predict([...pixels]),
    "doubles": () => network.run(Float64Array.from(pixels)),
    "floats to prepare": () => network.prepare(new Float32Array(784)),
    "an image of other pixels": () => network.predict({ data: new Float32Array(4 * 784), width: 28, height: 28 }),
    "grey as an image": () => network.predict({ data: pixels, width: 28, height: 28 }),
    "too few pixels": () => network.predict(pixels.subarray(1)),
    nothing: () => network.predict(),
    "nothing to run": () => network.run(),
    "nothing to prepare": () => network.prepare(),
    "top 0": () => network.predict(pixels, 0),
    "top -1": () => network.predict(pixels, -1),
    "top as text": () => network.predict(pixels, "2"),
    "a pose of another size": () => network.reconstruct(new Float32Array(3), 0),
    "a pose as an array": () => network.reconstruct([1, 2, 3, 4], 0),
    "class 3": () => network.reconstruct(new Float32Array(4), 3),
    "no class": () => network.reconstruct(new Float32Array(4)),
  });
}

console.log(JSON.stringify(await { package: ofThePackage, module: ofTheModule }[which]()));
