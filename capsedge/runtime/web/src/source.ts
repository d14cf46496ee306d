/** Read the bytes of a model file from any source, up to the limit. */
import { CapsedgeError, messageOf } from "./errors.js";
import type { Limits } from "./limits.js";
import { grouped, short } from "./text.js";

/** Where a model file comes from: its address, its bytes, or a `Blob` such as a dropped file. */
export type Source = string | URL | ArrayBuffer | Uint8Array | Blob;

/** The bytes of a file, and its name if it has one. */
export interface Content {
  bytes: Uint8Array;
  name: string;
}

/**
 * Read a file.
 *
 * @throws CapsedgeError `limit` if it is too large, `runtime` if it cannot be fetched or read, `input` for
 *   anything other than a source.
 */
export async function readSource(source: Source, limits: Limits): Promise<Content> {
  if (source instanceof Uint8Array) return { bytes: source, name: "" };
  if (source instanceof ArrayBuffer) return { bytes: new Uint8Array(source), name: "" };
  if (typeof source === "string" || source instanceof URL) return fetched(String(source), limits);
  if (!(source instanceof Blob)) {
    throw new CapsedgeError(
      "input",
      "The source of the model is neither an address nor bytes nor a Blob.",
      "In Node.js, pass the bytes: load(await readFile(path)).",
    );
  }
  checkBytes(source.size, limits);
  const name = "name" in source && typeof source.name === "string" ? source.name : "";
  try {
    return { bytes: new Uint8Array(await source.arrayBuffer()), name };
  } catch (error) {
    throw new CapsedgeError(
      "runtime",
      `The file cannot be read: ${messageOf(error)}`,
      "Choose it again; it may have changed.",
      { cause: error },
    );
  }
}

async function fetched(address: string, limits: Limits): Promise<Content> {
  const shown = short(address, 200);
  let response: Response;
  try {
    response = await fetch(address);
  } catch (error) {
    throw new CapsedgeError(
      "runtime",
      `${shown} cannot be fetched: ${messageOf(error)}`,
      "Check the address; in Node.js, pass the bytes of a file: load(await readFile(path)).",
      { cause: error },
    );
  }
  if (!response.ok)
    throw new CapsedgeError(
      "runtime",
      `${shown} cannot be fetched: the server responded with ${response.status}.`,
      "Check the address.",
    );
  checkBytes(Number(response.headers.get("content-length") ?? 0), limits);
  const name = new URL(response.url || address, "http://localhost").pathname.split("/").pop() ?? "";
  return { bytes: await received(response, shown, limits), name: decoded(name) };
}

/** The body of a response; a server may send more than it announces. */
async function received(response: Response, shown: string, limits: Limits): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  try {
    for (const reader = response.body?.getReader(); reader;) {
      const { done, value } = await reader.read();
      if (done) break;
      size += value.length;
      if (size > limits.fileBytes) await reader.cancel();
      checkBytes(size, limits);
      pieces.push(value);
    }
  } catch (error) {
    if (error instanceof CapsedgeError) throw error;
    throw new CapsedgeError("runtime", `${shown} was cut off: ${messageOf(error)}`, "Try again.", { cause: error });
  }
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

function checkBytes(size: number, limits: Limits): void {
  if (size <= limits.fileBytes) return;
  throw new CapsedgeError(
    "limit",
    `The file has ${grouped(size)} bytes or more; the limit is ${grouped(limits.fileBytes)}.`,
    "Check that it is the right file.",
  );
}

function decoded(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    return name; // not encoded
  }
}
