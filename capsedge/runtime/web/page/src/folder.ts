/** The manifest of the folder, `capsedge.json`: which models it has. Typed and bounded like any file from elsewhere. */

const MANIFEST = "capsedge.json";
const SCHEMA = 1;
const MOST = 1000; // models and files
const PATH = /^(?!\.)[\w./-]{1,200}$/;
const SHA256 = /^[0-9a-f]{64}$/;

export interface ModelFile {
  iterations: number;
  address: string;
  bytes: number;
  sha256: string;
}

export interface FolderModel {
  name: string;
  files: ModelFile[];
}

/**
 * The models of the folder that holds the page.
 *
 * @throws Error where the manifest is missing or is none.
 */
export async function readFolder(): Promise<FolderModel[]> {
  const address = new URL(MANIFEST, document.baseURI);
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${MANIFEST} is missing`);
  const manifest = object(await response.json());
  if (manifest["schema"] !== SCHEMA) throw new Error(`${MANIFEST} has another schema`);
  const listed = object(manifest["files"]);
  return list(manifest["models"]).map((model) => modelOf(object(model), listed, address));
}

function modelOf(model: Record<string, unknown>, listed: Record<string, unknown>, base: URL): FolderModel {
  const files = list(model["files"]).map((each): ModelFile => {
    const { iterations, path } = object(each);
    if (typeof path !== "string" || !PATH.test(path) || path.includes("..")) throw wrong();
    const { bytes, sha256 } = object(listed[path]);
    if (!whole(iterations) || !whole(bytes) || typeof sha256 !== "string" || !SHA256.test(sha256)) throw wrong();
    return { iterations, address: new URL(path, base).href, bytes, sha256 };
  });
  if (!files.length || typeof model["name"] !== "string") throw wrong();
  return { name: model["name"].slice(0, 200), files };
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
