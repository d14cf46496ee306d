// What the tests do in the browser's page.
import * as ort from "/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";
import { CapsedgeError, LIMITS, load } from "/capsedge/dist/index.js";
import { parseJson } from "/capsedge/dist/json.js";
import { pixelsOf } from "/capsedge/dist/pixels.js";
import { prepare } from "/capsedge/dist/prepare.js";
import { preprocessingFields } from "/capsedge/dist/generated/metadata.js";
import { checkedPreprocessing } from "/capsedge/dist/preprocessing.js";

async function blobOf(url) {
  return (await fetch(url)).blob();
}

async function digest(values) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", values));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function elementOf(url) {
  const element = new Image();
  element.src = url;
  await element.decode();
  return element;
}

const RGBA = '{"height": 1, "width": 1, "channels": 3}';

async function pixels(source) {
  return pixelsOf(source, checkedPreprocessing(preprocessingFields(parseJson(RGBA), ""), LIMITS), LIMITS);
}

globalThis.suite = {
  /** SHA-256 of the input of each picture; `as` is how the picture is given. */
  async prepared(pictures, as) {
    const found = [];
    for (const { url, preprocessing } of pictures) {
      const p = checkedPreprocessing(preprocessingFields(parseJson(preprocessing), ""), LIMITS);
      const blob = await blobOf(url);
      const given = { blob, element: () => elementOf(url), bitmap: () => createImageBitmap(blob) }[as];
      const source = typeof given === "function" ? await given() : given;
      found.push(await digest(prepare(await pixelsOf(source, p, LIMITS), p, false)));
    }
    return found;
  },

  /** Largest difference of a level between each picture, on black, and the float32 levels RGB at another address. */
  async differences(pairs) {
    const found = [];
    for (const [url, expected] of pairs) {
      const wanted = new Float32Array(await (await blobOf(expected)).arrayBuffer());
      const { data, width, height } = await pixels(await blobOf(url));
      let most = wanted.length === 3 * width * height ? 0 : Infinity;
      for (let k = 0; k < width * height; k++) {
        const cover = data[4 * k + 3] / 255;
        for (let c = 0; c < 3; c++) most = Math.max(most, Math.abs(data[4 * k + c] * cover - wanted[3 * k + c]));
      }
      found.push(most);
    }
    return found;
  },

  /** Answers of a model for pictures, and the decoder's pictures of their poses. */
  async answers(model, pictures, threads) {
    const session = await load(model, { runtime: ort, threads });
    const found = [];
    const segments = session.description.task === "segmentation";
    for (const url of pictures) {
      const prediction = await session.predict(await blobOf(url), segments ? {} : { top: 3 });
      const decoded = session.description.hasDecoder ? await session.decode(prediction.poses) : null;
      found.push({
        ranking: prediction.ranking,
        atypical: prediction.atypical,
        scores: [...prediction.scores],
        poses: [...prediction.poses.data],
        pictures: decoded && [...decoded.data],
        mask: prediction.mask && [...prediction.mask.data],
      });
    }
    const { threads: used, provider, fallback, description } = session;
    await session.close();
    return { found, threads: used, provider, fallback, file: description.file, isolated: crossOriginIsolated };
  },

  /** The error that a model or an image causes; null if there is none. */
  async refused(model, picture, options = {}) {
    try {
      const session = await load(model, { runtime: ort, threads: 1, ...options });
      if (picture) await session.predict(await blobOf(picture));
      await session.close();
      return null;
    } catch (error) {
      return { ours: error instanceof CapsedgeError, code: error.code, message: error.message };
    }
  },
};
