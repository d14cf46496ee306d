/**
 * The part of `webassembly.py` in Node.js, one thread. argv: what to measure, then
 * speed: folder of the npm packages, module of the compiled network, ONNX file, runs;
 * compiled: module, and general: folder of the npm packages and ONNX file: from here to the first answer.
 */
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const start = performance.now();
const [, , what, ...given] = process.argv;

/** A vertical stroke on black, of any size. */
function pixels({ height, width, channels }) {
  const inside = (i) => Math.abs((Math.floor(i / channels) % width) / width - 0.5) < 0.08;
  return new Uint8Array(height * width * channels).map((_, i) => (inside(i) ? 255 : 0));
}

const compiled = async (module) => (await import(pathToFileURL(module).href)).load();

async function runtimeOf(web) {
  const require = createRequire(pathToFileURL(`${web}/`));
  const runtime = await import(pathToFileURL(require.resolve("onnxruntime-web")).href);
  runtime.env.wasm.numThreads = 1;
  return runtime;
}

const measured = {
  async speed(web, module, file, runs) {
    const runtime = await runtimeOf(web);
    const network = await compiled(module);
    const session = await runtime.InferenceSession.create(await readFile(file), { executionProviders: ["wasm"] });
    const { preprocessing, input } = network.description;
    const prepared = network.prepare(pixels(preprocessing));
    const fed = { [session.inputNames[0]]: new runtime.Tensor("float32", prepared, input.shape) };
    const names = network.description.outputs.map(({ name }) => name);
    const times = { ours: [], theirs: [] };
    for (let k = -30; k < Number(runs); k++) {
      const begin = performance.now();
      network.run(prepared);
      const between = performance.now();
      await session.run(fed, names);
      if (k >= 0) {
        times.ours.push(between - begin);
        times.theirs.push(performance.now() - between);
      }
    }
    return times;
  },

  async compiled(module) {
    const network = await compiled(module);
    network.predict(pixels(network.description.preprocessing));
    return performance.now() - start;
  },

  async general(web, file) {
    const { load } = await import(pathToFileURL(`${web}/dist/index.js`).href);
    const session = await load(await readFile(file), { threads: 1 });
    const p = session.description.preprocessing;
    await session.predict({ data: pixels(p), ...p });
    return performance.now() - start;
  },
};

console.log(JSON.stringify(await measured[what](...given)));
process.exit(0);
