/** Runs a network in every host that Node.js has: argv: module, file with the questions; answers as JSON. */
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";
import { WASI } from "node:wasi";

const base64 = (values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64");
const floats = (text) => new Float32Array(new Uint8Array(Buffer.from(text, "base64")).buffer);
const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
const outputsOf = (found) => Object.fromEntries(Object.entries(found).map(([name, values]) => [name, base64(values)]));

const asked = {
  run: (net, { input }) => outputsOf(net.run(floats(input))),
  prepare: (net, { pixels }) => base64(net.prepare(bytes(pixels))),
  image: (net, { data, width, height }) => base64(net.prepare({ data: new Uint8ClampedArray(bytes(data)), width, height })),
  predict: (net, { pixels, top }) => {
    const { outputs, ...answer } = net.predict(bytes(pixels), top);
    return answer;
  },
  reconstruct: (net, { pose, index }) => base64(net.reconstruct(floats(pose), index)),
  describe: (net) => ({ labels: net.labels, batch: net.batch, description: net.description }),
  imports: (net) => [WebAssembly.Module.imports(net.module), WebAssembly.Module.exports(net.module).map(({ name }) => name)],
  /** As a WASI host runs it, without the JavaScript module. */
  wasi: async (net, { input }) => {
    const instance = await WebAssembly.instantiate(net.module, {});
    new WASI({ version: "preview1" }).initialize(instance);
    const { memory, input: at, run, output } = instance.exports;
    new Float32Array(memory.buffer, at()).set(floats(input));
    run();
    const { field, shape } = net.description.outputs[0];
    const size = shape.reduce((a, b) => a * b, 1);
    return { [field]: base64(new Float32Array(memory.buffer, output(0), size)), none: output(1000) };
  },
  /** In a worker, which gets the compiled module. */
  worker: (net, { input }) =>
    new Promise((resolve, reject) => {
      const worker = new Worker(new URL(import.meta.url), { workerData: { module: net.module, input, file } });
      worker.once("message", resolve);
      worker.once("error", reject);
    }),
};

const file = isMainThread ? process.argv[2] : workerData.file;
const { load } = await import(pathToFileURL(file).href);
if (isMainThread) {
  const net = await load();
  const answers = [];
  for (const { op, ...question } of JSON.parse(await readFile(process.argv[3], "utf-8"))) {
    try {
      answers.push(await asked[op](net, question));
    } catch (error) {
      answers.push({ refused: `${error.name}: ${error.message}` });
    }
  }
  console.log(JSON.stringify(answers));
} else {
  parentPort.postMessage(asked.run(await load(workerData.module), { input: workerData.input }));
}
