/** A model in ONNX Runtime: the only place that uses its API. */
import type { InferenceSession, Tensor } from "onnxruntime-web";
import { CapsedgeError, messageOf } from "./errors.js";
import type { Port } from "./graph.js";
import type { Limits } from "./limits.js";
import { short } from "./text.js";
import { CASTS, type FloatArray } from "./tensors.js";

/** The module `onnxruntime-web`, or one of its variants such as `onnxruntime-web/wasm`. */
export type Runtime = typeof import("onnxruntime-web");
export const PROVIDERS = ["wasm", "webgpu"] as const;
/** What runs a model: WebAssembly on the CPU, or WebGPU. */
export type Provider = (typeof PROVIDERS)[number];

const FATAL = 4; // ONNX Runtime's messages reach the caller as errors, not on the console
const MESSAGE = 300; // maximum number of characters passed on from its messages
const MOST_THREADS = 4;

/** Values computed by an engine. */
export type Computed = Pick<Tensor, "type" | "data" | "dims">;

/** What computes a model's outputs: ONNX Runtime, or the model itself if it is compiled. */
export interface Runnable {
  /**
   * Run the model on a batch, given as its only input.
   *
   * @throws CapsedgeError `runtime` if it fails.
   */
  run(port: Port, batch: FloatArray, outputs: readonly string[]): Promise<ReadonlyMap<string, Computed>>;
  close(): Promise<void>;
}

/** Which provider runs a model, and why it is not the first choice. */
export interface Chosen {
  provider: Provider;
  fallback: string | null;
}

// ONNX Runtime refuses overlapping calls, even for different sessions.
let last: Promise<unknown> = Promise.resolve();

function inTurn<T>(task: () => Promise<T>): Promise<T> {
  const next = last.then(task);
  last = next.catch(() => undefined);
  return next;
}

/** The first provider that accepts a model, and the loaded model. */
export async function open(
  runtime: Runtime,
  file: Uint8Array,
  providers: readonly Provider[],
  limits: Limits,
): Promise<Chosen & { engine: Engine }> {
  const refused: string[] = [];
  for (const provider of providers) {
    const lacking = provider === "webgpu" ? await lackingWebgpu() : null;
    try {
      if (lacking) throw new Error(lacking);
      const engine = await Engine.create(runtime, file, provider, limits);
      return { engine, provider, fallback: refused[0] ?? null };
    } catch (error) {
      refused.push(`${provider}: ${short(messageOf(error), MESSAGE)}`);
    }
  }
  throw new CapsedgeError(
    "runtime",
    `ONNX Runtime cannot load the model: ${refused.join("; ") || "no provider was named"}.`,
    "Run `capsedge verify` on the file; where the page has a Content-Security-Policy, it needs 'wasm-unsafe-eval'.",
  );
}

async function lackingWebgpu(): Promise<string | null> {
  const gpu = (globalThis.navigator as { gpu?: { requestAdapter(): Promise<unknown> } } | undefined)?.gpu;
  if (!gpu) return "this environment has no WebGPU";
  return (await gpu.requestAdapter()) ? null : "there is no GPU adapter";
}

/** Number of threads WebAssembly gets: as many as requested, if the page is isolated and may have them. */
export function useThreads(runtime: Runtime, wanted: number | undefined): number {
  const browser = typeof document === "object" || typeof WorkerGlobalScope === "function";
  const allowed = browser ? globalThis.crossOriginIsolated === true : true;
  const cores = globalThis.navigator?.hardwareConcurrency ?? 1;
  const usual = browser ? Math.min(MOST_THREADS, Math.ceil(cores / 2)) : 1;
  const threads = allowed ? (wanted ?? usual) : 1;
  runtime.env.wasm.numThreads = threads;
  return threads;
}

declare const WorkerGlobalScope: unknown;

/** One model in ONNX Runtime. */
export class Engine implements Runnable {
  private constructor(
    private readonly runtime: Runtime,
    private readonly session: InferenceSession,
  ) {}

  static create(runtime: Runtime, file: Uint8Array, provider: Provider, limits: Limits): Promise<Engine> {
    const options: InferenceSession.SessionOptions = {
      executionProviders: [provider],
      logSeverityLevel: FATAL,
      extra: {
        session: { load_model_format: "ONNX" },
        // Compute large constants only when they are needed, not while the model is loaded.
        optimization: { constant_folding_max_output_size_in_bytes: String(limits.runBytes) },
      },
    };
    return inTurn(async () => new Engine(runtime, await runtime.InferenceSession.create(file, options)));
  }

  async run(port: Port, batch: FloatArray, outputs: readonly string[]): Promise<ReadonlyMap<string, Tensor>> {
    const cast = CASTS[port.type];
    if (!cast)
      throw new CapsedgeError(
        "file",
        `The input '${short(port.name)}' has the type ${port.type || "of no tensor"}.`,
        "Export the model again.",
      );
    try {
      const tensor = new this.runtime.Tensor(port.type as "float32", cast(batch.data) as Float32Array, batch.dims);
      const found = await inTurn(() => this.session.run({ [port.name]: tensor }, [...new Set(outputs)]));
      return new Map(Object.entries(found));
    } catch (error) {
      throw new CapsedgeError(
        "runtime",
        `ONNX Runtime cannot run the model: ${short(messageOf(error), MESSAGE)}`,
        "Run `capsedge verify` on the file.",
        { cause: error },
      );
    }
  }

  close(): Promise<void> {
    return inTurn(() => this.session.release());
  }
}
