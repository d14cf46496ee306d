/** The folder's manifest, `capsedge.json`, which lists its models. Typed and bounded like any untrusted file. */

import type { FolderFile } from "./engine/messages.js";
import { MANIFEST, MANIFEST_SCHEMA, PAGE_RUNTIME } from "./generated/spec.js";

const MOST = 1000; // maximum number of models, and of files
const PATH = /^(?!\.)[\w./-]{1,200}$/;
const SHA256 = /^[0-9a-f]{64}$/;

export interface ModelFile extends FolderFile {
  iterations: number;
  compiled: FolderFile | null;
}

export interface FolderModel {
  name: string;
  files: ModelFile[];
}

export interface Folder {
  models: FolderModel[];
  /** Addresses of ONNX Runtime if it is fetched late because every model is compiled; empty otherwise. */
  runtime: string[];
}

/**
 * The folder that holds the page.
 *
 * @throws Error if the manifest is missing or invalid.
 */
export async function readFolder(): Promise<Folder> {
  const address = new URL(MANIFEST, document.baseURI);
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${MANIFEST} is missing`);
  const manifest = object(await response.json());
  if (manifest["schema"] !== MANIFEST_SCHEMA) throw new Error(`${MANIFEST} has another schema`);
  const listed = object(manifest["files"]);
  const late = manifest["late"] === undefined ? [] : list(manifest["late"]);
  const runtime = late.includes(PAGE_RUNTIME) ? Object.keys(listed).filter((path) => path.startsWith(PAGE_RUNTIME)) : [];
  return {
    models: list(manifest["models"]).map((model) => modelOf(object(model), listed, address)),
    runtime: runtime.map((path) => new URL(path, address).href),
  };
}

function modelOf(model: Record<string, unknown>, listed: Record<string, unknown>, base: URL): FolderModel {
  const files = list(model["files"]).map((each): ModelFile => {
    const { iterations, path, compiled } = object(each);
    if (!whole(iterations)) throw wrong();
    const file = (path: unknown) => fileOf(path, listed, base);
    return { iterations, ...file(path), compiled: compiled === undefined ? null : file(compiled) };
  });
  if (!files.length || typeof model["name"] !== "string") throw wrong();
  return { name: model["name"].slice(0, 200), files };
}

function fileOf(path: unknown, listed: Record<string, unknown>, base: URL): FolderFile {
  if (typeof path !== "string" || !PATH.test(path) || path.includes("..")) throw wrong();
  const { bytes, sha256 } = object(listed[path]);
  if (!whole(bytes) || typeof sha256 !== "string" || !SHA256.test(sha256)) throw wrong();
  return { address: new URL(path, base).href, bytes, sha256 };
}

function whole(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function object(value: unknown): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw wrong();
  return value as Record<string, unknown>;
}

function list(value: unknown): unknown[] {
  if (!Array.isArray(value) || value.length > MOST) throw wrong();
  return value;
}

function wrong(): Error {
  return new Error(`${MANIFEST} is not as \`capsedge deploy web\` writes it`);
}
