/** The service worker: caches the folder's files, and isolates the page from its second load onwards. */
import { byId, make } from "./ui/dom.js";

/** @param runtime addresses of ONNX Runtime, if only the visitor's own files need it. */
export async function keepOffline(runtime: readonly string[]): Promise<void> {
  const state = byId("offline");
  if (!("serviceWorker" in navigator)) {
    state.textContent = "Over https it would also work offline.";
    return;
  }
  try {
    await navigator.serviceWorker.register(new URL("worker.js", document.baseURI), { updateViaCache: "none" });
    await navigator.serviceWorker.ready;
    state.textContent = "It works offline now.";
    if (!crossOriginIsolated && !navigator.serviceWorker.controller) {
      await new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true }));
    }
    if (runtime.length) offerRuntime(state, runtime);
    else if (!crossOriginIsolated && navigator.hardwareConcurrency > 2) offerThreads(state);
  } catch {
    state.textContent = "It does not work offline: this server does not give its files unchanged.";
  }
}

/** Cache ONNX Runtime too, so that the visitor's own files run offline. */
function offerRuntime(state: HTMLElement, addresses: readonly string[]): void {
  const keep = make("button", { type: "button", className: "link" }, "Keep ONNX Runtime for files of your own too");
  keep.addEventListener("click", () => {
    keep.disabled = true;
    const all = addresses.map(async (address) => {
      if (!(await fetch(address)).ok) throw new Error(address);
    });
    Promise.all(all).then(
      () => keep.replaceWith("Files of your own do too"),
      () => (keep.disabled = false),
    );
  });
  state.append(" ", keep, ".");
}

/** Isolate the next load, which makes threads available to WebAssembly. */
function offerThreads(state: HTMLElement): void {
  const reload = make("button", { type: "button", className: "link" }, "Reload to use more threads");
  reload.addEventListener("click", () => location.reload());
  state.append(" ", reload, ".");
}
