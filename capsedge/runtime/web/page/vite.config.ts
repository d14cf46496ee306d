import { fileURLToPath } from "node:url";
import { defineConfig, type UserConfig } from "vite";
import { licences } from "./licences.js";

const SITE = fileURLToPath(new URL("../../../deploy/site", import.meta.url));

// `capsedge deploy web` and the service worker rely on these folders: their files are fetched if WebGPU is chosen, and
// if a model is not compiled.
const folderOf = (name = "") => (/webgpu|asyncify/.test(name) ? "webgpu" : /^ort[-.]/.test(name) ? "runtime" : "assets");

const output = {
  entryFileNames: "assets/[name]-[hash].js",
  chunkFileNames: ({ name }: { name: string }) => `${folderOf(name)}/[name]-[hash].js`,
  assetFileNames: ({ names }: { names: string[] }) => `${folderOf(names[0])}/[name]-[hash][extname]`,
};

// The package's default runtime; the page names one for each provider, so this must not add another.
const alias = [{ find: /^onnxruntime-web$/, replacement: "onnxruntime-web/wasm" }];

export default defineConfig({
  base: "./",
  plugins: [licences()],
  resolve: {
    alias,
    dedupe: ["onnxruntime-web"],
    // Its WebAssembly files stay separate files, under our own names.
    conditions: ["onnxruntime-web-use-extern-wasm", "module", "browser", "production"],
  },
  build: {
    outDir: SITE,
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the Content-Security-Policy does not allow data: addresses
    modulePreload: false,
    chunkSizeWarningLimit: 1000,
    rollupOptions: { output },
  },
  worker: { format: "es", rollupOptions: { output } },
} satisfies UserConfig);
