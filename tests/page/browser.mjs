// Plays one case in Chromium and prints what it saw as JSON: node browser.mjs CASE OPTIONS
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [, , name, given] = process.argv;
const options = JSON.parse(given);
const require = createRequire(pathToFileURL(`${options.modules}/`));
const { default: puppeteer } = await import(pathToFileURL(require.resolve("puppeteer-core")).href);

const PATIENCE = 120_000;
const QUIET = 400; // milliseconds without a reply after which nothing is on its way
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const browser = await puppeteer.launch({
  executablePath: options.browser,
  headless: true,
  args: ["--no-sandbox", "--disable-dev-shm-usage", ...(options.arguments ?? [])],
  protocolTimeout: 2 * PATIENCE,
});
const complaints = [];

/** Before the page runs: notes what breaks its policy, and what its worker is asked and answers. */
function watch() {
  globalThis.violations = [];
  globalThis.replies = [];
  globalThis.waiting = 0; // requests without a reply
  globalThis.intruded = false;
  addEventListener("securitypolicyviolation", (event) => globalThis.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  globalThis.Worker = class extends Worker {
    names = new Map();
    constructor(...args) {
      super(...args);
      this.addEventListener("message", ({ data }) => {
        const name = this.names.get(data.id);
        globalThis.waiting--;
        if (name === "predict") globalThis.firstAnswer ??= performance.now();
        globalThis.replies.push({ name, ...data });
      });
    }
    postMessage(message, ...rest) {
      this.names.set(message.id, message.name);
      if (message.name === "predict") globalThis.asked = structuredClone(message.args[0]);
      globalThis.waiting++;
      super.postMessage(message, ...rest);
    }
  };
}

async function open(address = options.url) {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", (message) => ["error", "warn"].includes(message.type()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  await page.evaluateOnNewDocument(watch);
  await page.setViewport({ width: 1280, height: 1000 });
  await page.goto(address);
  await answered(page, 1);
  await settled(page);
  return page;
}

const countOf = (page, call) => page.evaluate((wanted) => globalThis.replies.filter(({ name }) => name === wanted).length, call);

/** Wait until the page has shown so many answers. */
async function answered(page, count, call = "predict") {
  await page.waitForFunction((wanted, least) => globalThis.replies.filter(({ name }) => name === wanted).length >= least, {}, call, count);
}

/** What the worker said last to a call. */
const valueOf = (page, call) => page.evaluate((wanted) => {
  const { value, problem } = globalThis.replies.filter((each) => each.name === wanted).at(-1);
  if (problem) return { problem };
  if (wanted === "open") return value;
  if (wanted === "decode") return value.map(({ data, dims }) => ({ data: [...data], dims }));
  const { label, scores, poses, input } = value;
  return { label, scores: [...scores], poses: [...poses.data], input: [...input] };
}, call);

/** What the worker said to a call, after the action that asks for it. */
async function reply(page, call, action) {
  const before = await countOf(page, call);
  await action();
  await answered(page, before + 1, call);
  return valueOf(page, call);
}

/** The last answer once everything is shown, after an action that asks several times. */
async function last(page, action) {
  await action();
  await settled(page);
  return valueOf(page, "predict");
}

const text = (page, id) => page.$eval(`#${id}`, (element) => element.textContent);
const choose = (page, k) => reply(page, "open", () => page.evaluate((place) => {
  const choice = document.getElementById("model");
  choice.selectedIndex = place;
  choice.dispatchEvent(new Event("change", { bubbles: true }));
}, k));

/** Wait until the page has shown everything that was asked for. */
async function settled(page) {
  await page.waitForFunction((least) => {
    const idle = globalThis.waiting === 0 && !document.body.hasAttribute("aria-busy");
    const count = idle ? globalThis.replies.length : -1;
    if (globalThis.seen?.count !== count) globalThis.seen = { count, since: performance.now() };
    return idle && performance.now() - globalThis.seen.since > least;
  }, { polling: 50 }, QUIET);
}

const example = (page, k) => reply(page, "predict", () => page.$$eval(".example", (all, place) => all[place].click(), k));
const turn = (page, slider, to) => reply(page, "decode", () => page.$$eval("#sliders input", (all, place, value) => {
  all[place].value = value;
  all[place].dispatchEvent(new Event("input", { bubbles: true }));
}, slider, to));

async function strokes(page, lines) {
  const box = await (await page.$("#draw")).boundingBox();
  const at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
  for (const [first, ...rest] of lines) {
    await page.mouse.move(...at(first));
    await page.mouse.down();
    for (const point of rest) await page.mouse.move(...at(point), { steps: 5 });
    await page.mouse.up();
  }
}

/** The last mask, and what the pad shows at the centre of each of its pixels. */
const overlaid = (page, size) => page.evaluate(([height, width]) => {
  const { mask } = globalThis.replies.filter(({ name }) => name === "predict").at(-1).value;
  const canvas = document.getElementById("draw");
  const scale = canvas.width / Math.max(height, width);
  const [left, top] = [(canvas.width - width * scale) / 2, (canvas.height - height * scale) / 2];
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const middle = (k, start) => Math.floor(start + (k + 0.5) * scale);
  const at = (y, x) => {
    const place = 4 * (middle(y, top) * canvas.width + middle(x, left));
    return [...pixels.subarray(place, place + 3)];
  };
  const overlay = Array.from({ length: height }, (_, y) => Array.from({ length: width }, (_, x) => at(y, x)));
  return { mask: [...mask.data], size: [mask.height, mask.width], overlay };
}, size);

/** Drop a file that the page's own server has, under another name. */
const drop = (page, path, called) => page.evaluate(async (from, to) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([await (await fetch(from)).blob()], to));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}, path, called);

const cases = {
  async values() {
    const page = await open();
    const found = [];
    for (let model = 0; model < options.models; model++) {
      await settled(page);
      const opened = await choose(page, model);
      await settled(page);
      const answers = [];
      for (let k = 0; k < options.images; k++) answers.push(await example(page, k));
      await settled(page);
      const pictures = opened.description.hasDecoder ? [await turn(page, 0, 0), await turn(page, 3, 50)] : [];
      const { checked, compiled, description } = opened;
      found.push({ file: description.file, checked, compiled, answers, pictures });
    }
    return { found };
  },

  async draw() {
    const page = await open();
    await page.click("#clear");
    await settled(page);
    const hint = await page.$eval("#hint", (element) => !element.hidden);
    const one = await last(page, () => strokes(page, [[[0.5, 0.2], [0.5, 0.8]]]));
    await settled(page);
    const said = await text(page, "live");
    const two = await last(page, () => strokes(page, [[[0.25, 0.25], [0.75, 0.25], [0.45, 0.85]]]));
    await reply(page, "predict", () => page.click("#undo"));
    await settled(page);
    await page.click("#clear");
    await settled(page);
    const box = await (await page.$("#draw")).boundingBox();
    const touched = await last(page, () => page.touchscreen.touchStart(box.x + 150, box.y + 60)
      .then(async (touch) => { for (let y = 60; y < 260; y += 20) await touch.move(box.x + 150, box.y + y); await touch.end(); }));
    return { hint, one, said, two, touched };
  },

  async photographs() {
    const page = await open();
    const names = () => page.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => new URL(name).pathname));
    const before = await names();
    const opened = await choose(page, options.model);
    await settled(page);
    const shown = await page.evaluate(() => ["digits", "photographs", "fit-label"].filter((id) => !document.getElementById(id).hidden));
    const count = await page.$$eval("#photographs .example", (all) => all.length);
    const answers = [];
    for (let k = 0; k < count; k++) answers.push(await reply(page, "predict", () => page.$$eval("#photographs .example", (all, place) => all[place].click(), k)));
    return { before, file: opened.description.file, shown, answers };
  },

  async camera() {
    const page = await open();
    const pressed = () => page.$eval("#camera", (button) => button.getAttribute("aria-pressed"));
    await page.click("#camera");
    await page.waitForSelector("#message:not([hidden]), #camera[aria-pressed=true]");
    if ((await pressed()) === "false") return { message: await text(page, "message"), disabled: await page.$eval("#camera", (button) => button.disabled) };
    const count = await countOf(page, "predict");
    await answered(page, count + 5);
    const seen = await valueOf(page, "predict");
    await page.click("#camera");
    await settled(page);
    const stopped = await pressed();
    await page.click("#camera");
    await answered(page, (await countOf(page, "predict")) + 2);
    await page.$$eval(".example", (all) => all[4].click());
    await settled(page); // no picture comes after the example
    return { seen, stopped, example: await valueOf(page, "predict"), released: await pressed() };
  },

  async tabs() {
    const [first, second] = [await open(), await open()];
    const found = [];
    for (const page of [first, second, first]) {
      await page.bringToFront();
      found.push(await example(page, 3));
    }
    return { found };
  },

  async files() {
    const page = await open();
    const [chooser] = await Promise.all([page.waitForFileChooser(), page.click("#open")]);
    const opened = await reply(page, "open", () => chooser.accept([options.model]));
    await settled(page);
    const image = await reply(page, "predict", () => drop(page, options.image, "photo.png"));
    await drop(page, "capsedge.json", "text.png");
    await page.waitForSelector("#message:not([hidden])");
    const message = await text(page, "message");
    const hidden = () => page.$eval("#message", (element) => element.hidden);
    const forgotten = [];
    await reply(page, "predict", () => drop(page, options.light, "light.png"));
    forgotten.push(await hidden());
    const advice = [await text(page, "advice")];
    await reply(page, "predict", () => page.click("#invert"));
    advice.push(await text(page, "advice"));
    await drop(page, "capsedge.json", "text.png");
    await page.waitForSelector("#message:not([hidden])");
    await reply(page, "predict", () => page.click("#clear"));
    forgotten.push(await hidden());
    return { opened: opened.description, image, message, forgotten, advice };
  },

  async masks() {
    const page = await open();
    const drawn = await last(page, () => strokes(page, [[[0.5, 0.2], [0.5, 0.8]]]));
    await settled(page);
    await drop(page, options.image, "photo.png");
    await settled(page);
    const found = await overlaid(page, options.size);
    const rows = await page.$$eval("#classes .value", (all) => all.map((row) => row.textContent));
    const hidden = await page.$$eval("#picture, #fit-label", (all) => all.map((element) => element.hidden));
    return { drawn: drawn.label, ...found, rows, hidden };
  },

  async filmed() {
    const page = await open();
    await page.click("#camera");
    await page.waitForSelector("#message:not([hidden]), #camera[aria-pressed=true]");
    const began = await countOf(page, "predict");
    await page.waitForFunction((from, wanted) => {
      const answers = globalThis.replies.filter(({ name }) => name === "predict").slice(from);
      return answers.length >= 8 && new Set(answers.map(({ value }) => value?.mask?.data.join())).size >= wanted;
    }, {}, began, options.pictures);
    await page.click("#camera");
    await settled(page);
    const frame = await page.evaluate(() => {
      const { data, width, height } = globalThis.asked;
      return { size: [height, width], pixels: [...data] };
    });
    return { frame, ...(await overlaid(page, frame.size)), message: await text(page, "message") };
  },

  async small() {
    const page = await open();
    await page.waitForFunction(() => document.getElementById("offline").textContent.includes("works offline"));
    const names = () => page.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => new URL(name).pathname));
    const kept = () => page.evaluate(async () => (await (await caches.open((await caches.keys())[0])).keys()).map(({ url }) => new URL(url).pathname));
    const status = await text(page, "status");
    const before = { fetched: await names(), kept: await kept(), status, answer: await example(page, 4), trace: await page.$$eval("#steps > *", (all) => all.length) };
    const dropped = await reply(page, "open", () => drop(page, options.own, "own.onnx"));
    await settled(page);
    const own = await example(page, 4);
    await page.waitForSelector("#offline button");
    await page.click("#offline button");
    await page.waitForFunction(() => document.getElementById("offline").textContent.includes("Files of your own do too"));
    return { before, dropped, own, after: { kept: await kept(), status: await text(page, "status") } };
  },

  async hostile() {
    const page = await open();
    const found = [];
    for (const [path, called] of options.files) {
      const { problem, description } = await reply(page, "open", () => drop(page, path, called));
      await settled(page);
      if (description) await example(page, 1);
      found.push({ problem, description, message: await text(page, "message") });
    }
    const still = await example(page, 2);
    const elements = await page.$$eval("#classes img, #message img, #model *:not(option), #status *, script:not([src])", (all) => all.length);
    const labels = await page.$$eval(".line .name", (all) => all.map((each) => each.textContent));
    return { found, still, elements, labels, intruded: await page.evaluate(() => globalThis.intruded) };
  },

  async exchanged() {
    const page = await open();
    return { problem: (await choose(page, options.model)).problem };
  },

  async keyboard() {
    const page = await open();
    const reached = [];
    for (let k = 0; k < 80; k++) {
      await page.keyboard.press("Tab");
      const found = await page.evaluate(() => {
        const { id, className, type, tagName } = document.activeElement;
        return tagName === "BODY" ? null : id || className || `${type}`;
      });
      if (found === null) break;
      reached.push(found);
    }
    await page.focus(".line input:checked");
    const before = await page.$eval(".line input:checked", (radio) => radio.parentElement.textContent);
    await reply(page, "decode", () => page.keyboard.press("ArrowDown"));
    const after = await page.$eval(".line input:checked", (radio) => radio.parentElement.textContent);
    await page.focus("#sliders input");
    const value = await page.$eval("#sliders output", (output) => output.textContent);
    await reply(page, "decode", () => page.keyboard.press("PageUp"));
    const turned = await page.$eval("#sliders output", (output) => output.textContent);
    const nameless = await page.evaluate(() => {
      const named = (e) => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.labels?.length || e.textContent.trim();
      return [...document.querySelectorAll("button, input, select, canvas, a")].filter((e) => !named(e)).map((e) => e.outerHTML);
    });
    return { reached, before, after, value, turned, nameless };
  },

  async offline() {
    const page = await open();
    await page.waitForFunction(() => document.getElementById("offline").textContent.includes("works offline"));
    const first = await page.evaluate(() => crossOriginIsolated);
    const kept = await page.evaluate(async () => (await (await caches.open((await caches.keys())[0])).keys()).map(({ url }) => new URL(url).pathname));
    process.stdout.write("ready\n");
    await lines.next(); // the server is gone
    await page.reload();
    await answered(page, 1);
    const answer = await example(page, 5);
    return { first, second: await page.evaluate(() => crossOriginIsolated), kept, answer, status: await text(page, "status") };
  },

  async speed() {
    const start = performance.now();
    const page = await open();
    const loading = await page.evaluate(() => globalThis.firstAnswer); // since the navigation began
    const turns = await page.evaluate(async (count) => {
      const sliders = [...document.querySelectorAll("#sliders input")];
      const paint = CanvasRenderingContext2D.prototype.putImageData;
      let painted = () => undefined;
      CanvasRenderingContext2D.prototype.putImageData = function (...args) {
        paint.apply(this, args);
        if (this.canvas.closest("#pictures")) painted();
      };
      const times = [];
      for (let k = 0; k < count; k++) {
        const slider = sliders[k % sliders.length];
        const done = new Promise((resolve) => (painted = resolve));
        const begin = performance.now();
        slider.value = String(((k * 37) % 200) - 100);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await done;
        times.push(performance.now() - begin);
        await new Promise((resolve) => setTimeout(resolve, 4));
      }
      return times;
    }, options.turns);
    return { loading, turns, whole: performance.now() - start };
  },

  async pictures() {
    const page = await open();
    await example(page, 10);
    await turn(page, 8, 30);
    await settled(page);
    for (const width of [1280, 400]) {
      for (const scheme of ["light", "dark"]) {
        await page.setViewport({ width, height: 900 });
        await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
        await new Promise((resolve) => setTimeout(resolve, 600));
        await page.screenshot({ path: `${options.into}/page-${width}-${scheme}.png`, fullPage: true });
      }
    }
    return {};
  },

  async widths() {
    const page = await open();
    const found = [];
    for (const width of [320, 360, 400, 768, 1024, 1280, 1920]) {
      await page.setViewport({ width, height: 900 });
      found.push([width, await page.evaluate(() => document.documentElement.scrollWidth)]);
    }
    return { found };
  },
};

try {
  const found = await cases[name]();
  const pages = await browser.pages();
  const violations = (await Promise.all(pages.map((page) => page.evaluate(() => globalThis.violations ?? [])))).flat();
  process.stdout.write(`${JSON.stringify({ ...found, violations, complaints })}\n`);
} finally {
  await browser.close();
}
process.exit(0);
