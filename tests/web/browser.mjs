// Opens the page that is named, calls functions of its `suite`, and prints what they return as JSON; or, with `text`,
// prints the text of that element once it is no longer "loading".
// Standard input: { chromium, url, calls: [[name, ...arguments], ...], text }.
import { text } from "node:stream/consumers";
import puppeteer from "puppeteer-core";

const { chromium, url, calls, text: selector } = JSON.parse(await text(process.stdin));
const browser = await puppeteer.launch({
  executablePath: chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  protocolTimeout: 540_000,
});
try {
  const page = await browser.newPage();
  const complaints = [];
  const outside = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (line) => line.type() === "error" && complaints.push(line.text()));
  page.on("request", (request) => {
    const address = new URL(request.url());
    if (!["blob:", "data:"].includes(address.protocol) && address.origin !== new URL(url).origin) outside.push(address.href);
  });
  await page.goto(url);
  const ready = selector ? `document.querySelector(${JSON.stringify(selector)}).textContent !== "loading"` : "globalThis.suite";
  await page.waitForFunction(ready, { timeout: 120_000 });
  const results = selector ? [await page.$eval(selector, (element) => element.textContent)] : [];
  for (const [name, ...given] of calls) {
    results.push(await page.evaluate((called, args) => globalThis.suite[called](...args), name, given));
  }
  process.stdout.write(JSON.stringify({ results, complaints, outside }));
} finally {
  await browser.close();
}
