/** Load a model: fetch its file, check it, and only then pass it to ONNX Runtime. */
import { checkOptions, valueText } from "./arguments.js";
import { outputRoles, shapeText } from "./outputs.js";
import { Decoder } from "./decoder.js";
import { describe } from "./description.js";
import { open, PROVIDERS, useThreads, type Provider, type Runtime } from "./engine.js";
import { CapsedgeError, Malformed, messageOf } from "./errors.js";
import { Graph } from "./graph.js";
import { limitsOf, type Limits } from "./limits.js";
import { readMetadata, type Metadata } from "./metadata.js";
import { checkBodies, checkHarmless, summarize } from "./onnx-file.js";
import { Session } from "./session.js";
import { readSource, type Source } from "./source.js";
import { short } from "./text.js";

export interface LoadOptions {
  /** A variant of `onnxruntime-web`; by default `import("onnxruntime-web/wasm")`, the smallest. */
  runtime?: Runtime;
  /** Providers in order of preference; by default `["wasm"]`. */
  providers?: readonly Provider[];
  /** Number of WebAssembly threads; a page that is not cross-origin isolated has one. A page's first model sets it. */
  threads?: number;
  /** Smaller limits than `LIMITS`. */
  limits?: Partial<Limits>;
}

/**
 * Load a model that capsedge exported.
 *
 * @param source its address, its bytes, or a `Blob` such as a dropped file.
 * @throws CapsedgeError `file`, `metadata` or `limit` if the file is refused, before ONNX Runtime sees it; `input`
 *   for an invalid option; `runtime` if it cannot be fetched, or ONNX Runtime is missing or refuses it.
 */
export async function load(source: Source, options: LoadOptions = {}): Promise<Session> {
  checkOptions("load", options);
  const providers = options.providers ?? ["wasm"];
  checkProviders(providers, options.runtime);
  const limits = limitsOf(options.limits);
  const { bytes, name } = await readSource(source, limits);
  const checked = checkFile(bytes, limits);
  const runtime = options.runtime ?? (await importRuntime());
  const threads = useThreads(runtime, options.threads);
  const { engine, provider, fallback } = await open(runtime, bytes, providers, limits);
  const { metadata, roles, graph, input, outputs, summary } = checked;
  const poses = outputs.find((port) => port.name === roles.poses);
  const decoder = Decoder.of(graph, poses, { runtime, provider, limits });
  const description = describe({
    file: name,
    bytes: bytes.length,
    summary,
    metadata,
    roles,
    input,
    outputs,
    decoder,
  });
  return new Session({
    engine,
    provider,
    fallback,
    threads,
    description,
    metadata,
    roles,
    input,
    outputs,
    decoder,
    limits,
  });
}

/**
 * Check the bytes of a file without ONNX Runtime.
 *
 * @throws CapsedgeError `file`, `metadata` or `limit`.
 */
export function checkFile(bytes: Uint8Array, limits: Limits) {
  const summary = summarize(bytes, limits);
  checkHarmless(summary);
  checkBodies(summary);
  const metadata = readMetadata(summary.metadata, limits);
  const graph = graphOf(bytes, limits);
  const { inputs, outputs } = graph;
  const [input] = inputs;
  if (!metadata || !input) throw undescribed(metadata, input?.shape);
  return { summary, metadata, graph, input, outputs, roles: outputRoles(metadata, inputs, outputs, limits) };
}

function graphOf(bytes: Uint8Array, limits: Limits): Graph {
  try {
    return new Graph(bytes, limits);
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    throw new CapsedgeError(
      "file",
      `The file is not a complete ONNX file: ${error.message}.`,
      "Export the model again with `capsedge export`.",
      { cause: error },
    );
  }
}

function undescribed(metadata: Metadata | null, shape: readonly (number | null)[] | undefined): CapsedgeError {
  if (metadata)
    return new CapsedgeError(
      "file",
      "The graph of the file has no input.",
      "Export the model again with `capsedge export`.",
    );
  return new CapsedgeError(
    "metadata",
    `The file states neither its classes nor its preprocessing; its input is ${shape ? shapeText(shape) : "missing"}.`,
    "Describe it, for example: `capsedge optimize model.onnx -o described.onnx --classes labels.txt --size 28x28`.",
  );
}

function checkProviders(providers: unknown, runtime: unknown): void {
  const hint = `Pass a list of ${PROVIDERS.map((each) => `"${each}"`).join(" and ")}, in order of preference.`;
  if (!Array.isArray(providers) || !providers.length) {
    throw new CapsedgeError(
      "input",
      `providers is ${Array.isArray(providers) ? "empty" : valueText(providers)}.`,
      hint,
    );
  }
  const unknown: unknown = providers.find((each) => !PROVIDERS.some((known) => known === each));
  if (unknown !== undefined)
    throw new CapsedgeError(
      "input",
      `The provider is ${typeof unknown === "string" ? short(unknown, 40) : valueText(unknown)}.`,
      hint,
    );
  if (runtime !== undefined && typeof (runtime as Partial<Runtime> | null)?.InferenceSession?.create !== "function") {
    throw new CapsedgeError(
      "input",
      `runtime is ${valueText(runtime)}.`,
      'Pass the module: runtime: await import("onnxruntime-web/wasm").',
    );
  }
  // Not imported here: bundlers would then add its 27 MB of WebAssembly to every page.
  if (runtime === undefined && providers.includes("webgpu")) {
    throw new CapsedgeError(
      "input",
      "WebGPU needs a variant of ONNX Runtime.",
      'Pass it: load(source, { providers, runtime: await import("onnxruntime-web/webgpu") }).',
    );
  }
}

async function importRuntime(): Promise<Runtime> {
  try {
    return (await import("onnxruntime-web/wasm")) as Runtime;
  } catch (error) {
    throw new CapsedgeError(
      "runtime",
      `ONNX Runtime cannot be imported: ${messageOf(error)}`,
      "`npm install onnxruntime-web`, or pass it as the option runtime.",
      { cause: error },
    );
  }
}
