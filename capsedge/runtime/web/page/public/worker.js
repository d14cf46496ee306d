/* Keeps exactly the folder's files, so that the page works without a network, and isolates the page, which gives
   WebAssembly its threads, where the server does not send these headers itself. */
const VERSION = "@capsedge-version@"; // `capsedge deploy web` puts a checksum of the manifest here
const FAMILY = `capsedge ${self.registration.scope} `; // several folders may share an origin
const CACHE = FAMILY + VERSION;
const MANIFEST = "capsedge.json";
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

/** Requests for the listed files, which fail where the content is another; `late` ones are kept when they are used. */
function requests({ files, late }) {
  return Object.entries(files).map(([path, { sha256 }]) => ({
    late: late.some((start) => path.startsWith(start)),
    request: new Request(addressOf(path), { cache: "no-cache", integrity: integrityOf(sha256) }),
  }));
}

async function install() {
  const cache = await caches.open(CACHE);
  const manifest = await (await fetch(addressOf(MANIFEST), { cache: "no-cache" })).json();
  const early = requests(manifest).filter(({ late }) => !late);
  await cache.addAll([addressOf(MANIFEST), ...early.map(({ request }) => request)]);
}

async function activate() {
  const old = (await caches.keys()).filter((name) => name.startsWith(FAMILY) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

/** A late file, which is kept from now on; null for any other, and where it is not as listed. */
async function fetchedLate(cache, address) {
  const manifest = await cache.match(addressOf(MANIFEST));
  if (!manifest) return null;
  const found = requests(await manifest.json()).find(({ late, request }) => late && request.url === address);
  const response = found && (await fetch(found.request).catch(() => null));
  if (!response?.ok) return null;
  await cache.put(address, response.clone());
  return response;
}

async function answer(request, address) {
  const cache = await caches.open(CACHE);
  const response = (await cache.match(address)) ?? (await fetchedLate(cache, address)) ?? (await fetch(request));
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
