/** What runs the model, and why nothing faster does. */
import type { Opened } from "../engine/messages.js";

export function statusOf({ description: d, provider, fallback, threads, compiled, checked }: Opened): string {
  const size = d.bytes < 1e6 ? `${Math.round(d.bytes / 1e3)} kB` : `${(d.bytes / 1e6).toFixed(1)} MB`;
  const counted = d.iterations > 0 ? `, ${d.iterations} ${d.iterations === 1 ? "iteration" : "iterations"}` : "";
  const routing = d.routing ? `${d.routing} routing${counted}` : d.architecture;
  const parts = [`${d.file}: ${size}`, routing, d.precision, checked ? "checksum as deployed" : ""];
  return `${parts.filter(Boolean).join(", ")}. Runs on ${compiled ? "WebAssembly, compiled from this network" : placeOf(provider, threads)}.${fallback ? ` Not on WebGPU: ${fallback}` : ""}`;
}

function placeOf(provider: string, threads: number): string {
  if (provider === "webgpu") return "WebGPU";
  if (threads > 1) return `WebAssembly with ${threads} threads`;
  return crossOriginIsolated ? "WebAssembly" : "WebAssembly with one thread, as this page is not isolated";
}
