/** The worker that holds the model, so that neither loading nor running it stops the page. */
import { CapsedgeError, LIMITS, load, type Provider, type Session } from "capsedge";
import type { Calls, ModelSource, Opened, Problem, Reply, Request } from "./messages.js";
import { runtimeFor } from "./runtimes.js";

let session: Session | null = null;
runtimeFor("wasm").catch(() => undefined); // early, as it is wanted next; a failure is told then

const calls: Calls = {
  async open(source, provider) {
    const { file, checked } = await fileOf(source);
    const { session: opened, fallback } = await first(file, provider);
    const before = session;
    session = opened;
    await before?.close();
    const { description, threads } = opened;
    return { description, provider: opened.provider, fallback, threads, checked };
  },

  async predict(image, invert) {
    const current = open();
    const trace = current.description.trace !== null;
    const top = current.description.labels.length;
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

/** The model with a provider, or with WebAssembly where WebGPU cannot take it. */
async function first(file: Blob, provider: Provider): Promise<{ session: Session; fallback: Opened["fallback"] }> {
  if (provider === "wasm") return { session: await withProvider(file, "wasm"), fallback: null };
  try {
    return { session: await withProvider(file, "webgpu"), fallback: null };
  } catch (error) {
    // What is wrong with the file is wrong for every provider.
    if (!(error instanceof CapsedgeError) || error.code !== "runtime") throw error;
    return { session: await withProvider(file, "wasm"), fallback: error.message };
  }
}

async function withProvider(file: Blob, provider: Provider): Promise<Session> {
  return load(file, { runtime: await runtimeFor(provider), providers: [provider] });
}

async function fileOf(source: ModelSource): Promise<{ file: Blob; checked: boolean }> {
  if ("file" in source) return { file: source.file, checked: false };
  if (source.bytes > LIMITS.fileBytes) throw new CapsedgeError("limit", "The file is too large.", "Deploy a smaller one.");
  const response = await fetch(source.address).catch((error: unknown) => {
    throw new CapsedgeError("runtime", "The model cannot be fetched.", "Check the connection and try again.", { cause: error });
  });
  if (!response.ok) throw new CapsedgeError("runtime", `The model cannot be fetched: the server responded with ${response.status}.`, "Deploy the folder again.");
  const bytes = await response.arrayBuffer();
  const name = decodeURIComponent(source.address.split("/").pop() ?? "");
  return { file: new File([bytes], name), checked: await compared(bytes, source.sha256) };
}

/** Compare a file with its checksum; browsers compute one on secure origins only. */
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

