/** ONNX Runtime in the variant that a provider needs; each is fetched when first used. */
import type { Provider, Runtime } from "capsedge";
import wasmModule from "onnxruntime-web/ort-wasm-simd-threaded.mjs?url";
import wasmFile from "onnxruntime-web/ort-wasm-simd-threaded.wasm?url";
import webgpuModule from "onnxruntime-web/ort-wasm-simd-threaded.asyncify.mjs?url";
import webgpuFile from "onnxruntime-web/ort-wasm-simd-threaded.asyncify.wasm?url";

const absolute = (address: string) => new URL(address, self.location.href).href;

/** The module for a provider. */
export async function runtimeFor(provider: Provider): Promise<Runtime> {
  const gpu = provider === "webgpu";
  const runtime = (gpu ? await import("onnxruntime-web/webgpu") : await import("onnxruntime-web/wasm")) as Runtime;
  runtime.env.wasm.wasmPaths = gpu
    ? { mjs: absolute(webgpuModule), wasm: absolute(webgpuFile) }
    : { mjs: absolute(wasmModule), wasm: absolute(wasmFile) };
  return runtime;
}
