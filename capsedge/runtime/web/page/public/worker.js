/* Keeps exactly the folder's files, so that the page works without a network, and isolates the page, which gives
   WebAssembly its threads, where the server does not send these headers itself. */
const VERSION = "@capsedge-version@"; // `capsedge deploy web` puts a checksum of the manifest here
const FAMILY = `capsedge ${self.registration.scope} `; // several folders may share an origin
const CACHE = FAMILY + VERSION;
const MANIFEST = "capsedge.json";
const ON_DEMAND = "webgpu/";
const ISOLATION = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "same-origin",
};

const addressOf = (path) => new URL(path, self.registration.scope).href;

/** A checksum as `fetch` takes it. */
function integrityOf(hex) {
  const bytes = hex.match(/../g).map((pair) => String.fromCharCode(parseInt(pair, 16)));
  return `sha256-${btoa(bytes.join(""))}`;
}

/** Requests for the listed files, which fail where the content is another. */
async function listed() {
  const manifest = await (await fetch(addressOf(MANIFEST), { cache: "no-cache" })).json();
  return Object.entries(manifest.files).map(([path, { sha256 }]) => ({
    path,
    request: new Request(addressOf(path), { cache: "no-cache", integrity: integrityOf(sha256) }),
  }));
}

async function install() {
  const cache = await caches.open(CACHE);
  const files = await listed();
  await cache.addAll([addressOf(MANIFEST), ...files.filter(({ path }) => !path.startsWith(ON_DEMAND)).map(({ request }) => request)]);
}

async function activate() {
  const old = (await caches.keys()).filter((name) => name.startsWith(FAMILY) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

async function answer(request, address) {
  const cache = await caches.open(CACHE);
  const kept = await cache.match(address);
  const response = kept ?? (await fetch(request));
  if (!kept && response.ok && address.startsWith(addressOf(ON_DEMAND))) await cache.put(address, response.clone());
  if (response.type === "opaque" || response.redirected || !response.ok) return response;
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(ISOLATION)) headers.set(name, value);
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  const address = url.origin + url.pathname;
  if (request.method !== "GET" || !address.startsWith(self.registration.scope)) return;
  event.respondWith(answer(request, address === self.registration.scope ? addressOf("index.html") : address));
});
