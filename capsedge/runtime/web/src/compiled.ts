/** Networks compiled by `capsedge build --target wasm`: sessions without ONNX Runtime. */
import { checkOptions } from "./arguments.js";
import { checkedPoses, type PoseDecoder } from "./decoder.js";
import { integer, list, mapping, nullable, object, pair, string } from "./decode.js";
import { describe } from "./description.js";
import type { Computed, Runnable } from "./engine.js";
import { CapsedgeError, Malformed, messageOf } from "./errors.js";
import { COMPILED_SCHEMA, WASM_KIND, WASM_SECTION } from "./generated/metadata.js";
import { DOMAIN } from "./generated/spec.js";
import type { Port } from "./graph.js";
import { parseJson } from "./json.js";
import { limitsOf, type Limits } from "./limits.js";
import { readMetadata } from "./metadata.js";
import { outputRoles } from "./outputs.js";
import { Session } from "./session.js";
import { readSource, type Source } from "./source.js";
import { short } from "./text.js";
import type { FloatArray } from "./tensors.js";

const MAGIC = [0, 0x61, 0x73, 0x6d]; // "\0asm"
const AGAIN = "Build it again with `capsedge build --target wasm`.";

export interface CompiledOptions {
  /** Smaller limits than `LIMITS`. */
  limits?: Partial<Limits>;
}

/**
 * Load a network compiled to WebAssembly, which needs no ONNX Runtime and runs in one thread.
 *
 * @param source `NAME.wasm`: its address, its bytes, or a `Blob`.
 * @throws CapsedgeError `file`, `metadata` or `limit` if the file is refused; `runtime` if it cannot be fetched, or if
 *   this engine cannot compile it, for example because it lacks SIMD.
 */
export async function loadCompiled(source: Source, options: CompiledOptions = {}): Promise<Session> {
  checkOptions("loadCompiled", options);
  const limits = limitsOf(options.limits);
  const { bytes, name } = await readSource(source, limits);
  if (!MAGIC.every((byte, k) => bytes[k] === byte)) throw notCompiled("it is not WebAssembly");
  const module = await WebAssembly.compile(bytes as BufferSource).catch((error: unknown) => {
    throw new CapsedgeError(
      "runtime",
      `The network cannot be compiled here: ${short(messageOf(error), 300)}`,
      "It needs WebAssembly with SIMD; the ONNX file runs without it.",
      { cause: error },
    );
  });
  const found = described(module);
  const functions = await instantiated(module);
  const metadata = readMetadata(found.file.properties, limits);
  if (!metadata) throw notCompiled("it has no metadata");
  const input = port(found.file.input, found.input);
  const outputs = found.outputs.map((each) => port(each.name, each.shape));
  const roles = outputRoles(metadata, [input], outputs, limits);
  const network = new Network(functions, outputs);
  const decoder = found.reconstruction
    ? new CompiledDecoder(network, ...found.reconstruction.capsules, found.reconstruction.picture)
    : "it was exported without its decoder";
  const summary = {
    producer: found.file.producer,
    producerVersion: found.file.producer_version,
    nodes: found.file.nodes,
    operators: found.file.operators.map((type) => ({ domain: DOMAIN, type, overload: "" })),
  };
  const description = describe({ file: name, bytes: bytes.length, summary, metadata, roles, input, outputs, decoder });
  return new Session({
    engine: network,
    provider: "wasm",
    fallback: null,
    threads: 1,
    description,
    metadata,
    roles,
    input,
    outputs,
    decoder,
    limits,
  });
}

// --- What the file states about itself ---

const sizes = list(integer);
const FILE = object({
  producer: string,
  producer_version: string,
  nodes: integer,
  operators: list(string),
  input: string,
  properties: mapping(string),
});
const OUTPUT = object({ name: string, field: string, shape: sizes, meaning: string });
const RECONSTRUCTION = object({ capsules: pair(integer), picture: sizes });

function described(module: WebAssembly.Module) {
  const [section] = WebAssembly.Module.customSections(module, WASM_SECTION);
  if (!section || WebAssembly.Module.imports(module).length) throw notCompiled("it is another program");
  try {
    const all = parseJson(new TextDecoder("utf-8", { fatal: true }).decode(section));
    if (!(all instanceof Map) || all.get("kind") !== WASM_KIND) throw new Malformed("it has another kind");
    if (all.get("schema") !== BigInt(COMPILED_SCHEMA)) throw new Malformed("another version of capsedge wrote it");
    const field = (name: string) => all.get(name) ?? null;
    const shaped = field("input");
    return {
      file: FILE(field("file"), "file"),
      input: sizes((shaped instanceof Map && shaped.get("shape")) || null, "input.shape"),
      outputs: list(OUTPUT)(field("outputs"), "outputs"),
      reconstruction: nullable(RECONSTRUCTION)(field("reconstruction"), "reconstruction"),
    };
  } catch (error) {
    if (!(error instanceof Malformed || error instanceof TypeError)) throw error;
    throw notCompiled(messageOf(error));
  }
}

function port(name: string, shape: number[]): Port {
  if (!shape.every((size) => size >= 1)) throw notCompiled(`'${short(name)}' has the shape [${shape.join(", ")}]`);
  return { name, type: "float32", width: 4, shape };
}

function notCompiled(why: string): CapsedgeError {
  return new CapsedgeError("file", `The file is not a network compiled by capsedge: ${why}.`, AGAIN);
}

// --- Its functions ---

/** The exports of a network: buffers are given by their addresses. */
interface Functions {
  memory: WebAssembly.Memory;
  input(): number;
  output(index: number): number;
  run(): void;
  poses?(): number;
  picture?(): number;
  reconstruct?(index: number): void;
}

async function instantiated(module: WebAssembly.Module): Promise<Functions> {
  const { exports } = await WebAssembly.instantiate(module, {});
  const whole = ["input", "output", "run"].every((name) => typeof exports[name] === "function");
  if (!whole || !(exports["memory"] instanceof WebAssembly.Memory)) throw notCompiled("its functions are missing");
  return exports as unknown as Functions;
}

/** The network, which computes synchronously: a call leaves nothing behind but its results. */
class Network implements Runnable {
  constructor(
    readonly functions: Functions,
    private readonly ports: readonly Port[],
  ) {}

  async run(_: Port, batch: FloatArray, outputs: readonly string[]): Promise<ReadonlyMap<string, Computed>> {
    const { functions, ports } = this;
    const wanted = new Set(outputs);
    return this.guarded(() => {
      this.values(functions.input(), batch.data.length).set(batch.data);
      functions.run();
      const found = new Map<string, Computed>();
      for (const [k, { name, shape }] of ports.entries()) {
        if (!wanted.has(name)) continue;
        const dims = shape as number[];
        found.set(name, { type: "float32", data: this.values(functions.output(k), product(dims)).slice(), dims });
      }
      return found;
    });
  }

  /** Values in its memory. */
  values(address: number, count: number): Float32Array {
    return new Float32Array(this.functions.memory.buffer, address >>> 0, count);
  }

  /** Run a task; traps and addresses outside the memory become errors with a hint. */
  guarded<T>(task: () => T): T {
    try {
      return task();
    } catch (error) {
      throw new CapsedgeError("runtime", `The network failed: ${short(messageOf(error), 300)}`, AGAIN, {
        cause: error,
      });
    }
  }

  async close(): Promise<void> {}
}

class CompiledDecoder implements PoseDecoder {
  constructor(
    private readonly network: Network,
    private readonly classes: number,
    private readonly size: number,
    private readonly picture: readonly number[],
  ) {}

  async decode(poses: Float32Array, classIndex: number | null): Promise<FloatArray> {
    const { classes, size, picture, network } = this;
    checkedPoses(poses, classes, size, classIndex);
    const count = poses.length / size; // each with a class of its own
    const pixels = product(picture);
    const data = new Float32Array(count * pixels);
    network.guarded(() => {
      const { poses: at, picture: drawn, reconstruct } = network.functions;
      if (!at || !drawn || !reconstruct) throw new Error("it has no decoder");
      for (let k = 0; k < count; k++) {
        const index = classIndex ?? k % classes;
        network.values(at() + 4 * index * size, size).set(poses.subarray(k * size, (k + 1) * size));
        reconstruct(index);
        data.set(network.values(drawn(), pixels), k * pixels);
      }
    });
    return { data, dims: classIndex === null ? [count / classes, classes, ...picture] : [count, ...picture] };
  }

  async close(): Promise<void> {}
}

function product(shape: readonly number[]): number {
  return shape.reduce((size, d) => size * d, 1);
}
