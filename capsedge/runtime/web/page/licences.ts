/** THIRD_PARTY.txt: the licences of everything that the built page contains. */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Plugin } from "vite";

const HERE = dirname(fileURLToPath(import.meta.url));
const MODULES = join(HERE, "node_modules");
const OWN = "capsedge";

interface Manifest {
  name: string;
  version: string;
  license?: string;
  dependencies?: Record<string, string>;
}

function manifestOf(folder: string): Manifest {
  return JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Manifest;
}

/** The page's dependencies and theirs in turn, by name. */
function packages(): Map<string, Manifest> {
  const found = new Map<string, Manifest>();
  const waiting = Object.keys(manifestOf(HERE).dependencies ?? {});
  for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
    if (name === OWN || found.has(name)) continue;
    const manifest = manifestOf(join(MODULES, name));
    found.set(name, manifest);
    waiting.push(...Object.keys(manifest.dependencies ?? {}));
  }
  return new Map([...found].sort(([a], [b]) => a.localeCompare(b)));
}

function licenceText(name: string): string {
  const folder = join(MODULES, name);
  const files = readdirSync(folder).filter((file) => /^(licen[cs]e|copying|notice)/i.test(file));
  return files.map((file) => readFileSync(join(folder, file), "utf8").trim()).join("\n\n");
}

function section([name, manifest]: [string, Manifest]): string {
  const title = `${name} ${manifest.version}, ${manifest.license ?? "licence not stated"}`;
  const text = licenceText(name) || "Its package contains no licence text.";
  return `${title}\n${"=".repeat(title.length)}\n\n${text}\n`;
}

/** Write the file into the output. */
export function licences(): Plugin {
  const head =
    "This folder contains capsedge (Apache-2.0) and the packages below. The WebAssembly files are ONNX Runtime's;\n" +
    "the libraries within them are listed in ThirdPartyNotices.txt of its source.\n";
  return {
    name: "licences",
    generateBundle() {
      const source = [head, ...[...packages()].map(section)].join("\n");
      this.emitFile({ type: "asset", fileName: "THIRD_PARTY.txt", source });
    },
  };
}
