/** The worker that holds the model, so that neither loading nor running it blocks the page. */
import { CapsedgeError, LIMITS, load, loadCompiled, type Provider, type Session } from "capsedge";
import type { Calls, FolderFile, ModelSource, Opened, Problem, Reply, Request } from "./messages.js";
import { runtimeFor } from "./runtimes.js";

let session: Session | null = null;

const calls: Calls = {
  async warm() {
    await runtimeFor("wasm");
  },

  async open(source, provider) {
    const { session: opened, fallback, compiled, checked } = await found(source, provider);
    const before = session;
    session = opened;
    await before?.close();
    const { description, threads } = opened;
    return { description, provider: opened.provider, fallback, threads, compiled, checked };
  },

  async predict(image, invert) {
    const current = open();
    const { task, labels } = current.description;
    const trace = current.description.trace !== null;
    const top = task === "segmentation" ? 0 : labels.length;
    return current.predict(image, { invert, trace, ...(top > 0 && { top }) });
  },

  async decode(poses, classes) {
    const pictures = [];
    for (const [k, pose] of poses.entries()) {
      const { data, dims } = await open().decode(pose, classes[k]);
      pictures.push({ data, dims: dims.slice(1) });
    }
    return pictures;
  },
};

function open(): Session {
  if (session) return session;
  throw new CapsedgeError("input", "No model is open.", "Choose one.");
}

interface Found {
  session: Session;
  fallback: Opened["fallback"];
  compiled: boolean;
  checked: boolean;
}

/** The model: compiled if the folder has it compiled and WebAssembly is wanted, otherwise in ONNX Runtime. */
async function found(source: ModelSource, provider: Provider): Promise<Found> {
  if (!("file" in source) && source.compiled && provider === "wasm") {
    const { file, checked } = await fetched(source.compiled);
    try {
      return { session: await loadCompiled(file), fallback: null, compiled: true, checked };
    } catch (error) {
      // An engine without SIMD cannot compile it; ONNX Runtime then reports what is missing.
      if (!(error instanceof CapsedgeError) || error.code !== "runtime") throw error;
    }
  }
  const { file, checked } = "file" in source ? { file: source.file, checked: false } : await fetched(source);
  return { ...(await first(file, provider)), compiled: false, checked };
}

/** The model on a provider, or on WebAssembly if WebGPU cannot run it. */
async function first(file: Blob, provider: Provider): Promise<{ session: Session; fallback: Opened["fallback"] }> {
  if (provider === "wasm") return { session: await withProvider(file, "wasm"), fallback: null };
  try {
    return { session: await withProvider(file, "webgpu"), fallback: null };
  } catch (error) {
    // A problem with the file is a problem for every provider.
    if (!(error instanceof CapsedgeError) || error.code !== "runtime") throw error;
    return { session: await withProvider(file, "wasm"), fallback: error.message };
  }
}

async function withProvider(file: Blob, provider: Provider): Promise<Session> {
  return load(file, { runtime: await runtimeFor(provider), providers: [provider] });
}

async function fetched(source: FolderFile): Promise<{ file: Blob; checked: boolean }> {
  if (source.bytes > LIMITS.fileBytes) throw new CapsedgeError("limit", "The file is too large.", "Deploy a smaller one.");
  const response = await fetch(source.address).catch((error: unknown) => {
    throw new CapsedgeError("runtime", "The model cannot be fetched.", "Check the connection and try again.", { cause: error });
  });
  if (!response.ok) throw new CapsedgeError("runtime", `The model cannot be fetched: the server responded with ${response.status}.`, "Deploy the folder again.");
  const bytes = await response.arrayBuffer();
  const name = decodeURIComponent(source.address.split("/").pop() ?? "");
  return { file: new File([bytes], name), checked: await compared(bytes, source.sha256) };
}

/** Verify a file against its checksum; browsers compute checksums only on secure origins. */
async function compared(bytes: ArrayBuffer, sha256: string): Promise<boolean> {
  if (!("subtle" in crypto)) return false;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const found = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found === sha256) return true;
  throw new CapsedgeError("file", "The file is not the one that was deployed: its checksum differs.", "Deploy the folder again.");
}

function problemOf(error: unknown): Problem {
  if (error instanceof CapsedgeError) return { code: error.code, message: error.message, hint: error.hint };
  return { code: "bug", message: `Unexpected: ${error instanceof Error ? error.message : String(error)}`, hint: "" };
}

self.onmessage = async ({ data: { id, name, args } }: MessageEvent<Request>) => {
  const reply = (message: Reply) => self.postMessage(message);
  try {
    const call = calls[name] as (...args: unknown[]) => Promise<unknown>;
    reply({ id, value: await call(...args) });
  } catch (error) {
    reply({ id, problem: problemOf(error) });
  }
};

