/** The service worker: keeps the folder's files, and isolates the page from its second load on. */
import { byId, make } from "./ui/dom.js";

export async function keepOffline(): Promise<void> {
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
    if (!crossOriginIsolated && navigator.hardwareConcurrency > 2) offerThreads(state);
  } catch {
    state.textContent = "It does not work offline: this server does not give its files unchanged.";
  }
}

/** The next load is isolated, which gives WebAssembly threads. */
function offerThreads(state: HTMLElement): void {
  const reload = make("button", { type: "button", className: "link" }, "Reload to use more threads");
  reload.addEventListener("click", () => location.reload());
  state.append(" ", reload, ".");
}
