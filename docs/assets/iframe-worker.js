/* The theme searches in a worker, which browsers refuse to start for pages that are opened from a folder. There, a hidden
 * frame takes its place. */
"use strict";

class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.waiting = [];
    const frame = document.createElement("iframe");
    frame.hidden = true;
    frame.srcdoc = "<!doctype html><body></body>";
    frame.addEventListener("load", () => this.start(frame.contentWindow, url), { once: true });
    if (document.body) document.body.append(frame);
    else addEventListener("DOMContentLoaded", () => document.body.append(frame));
  }

  start(inside, url) {
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    inside.importScripts = (...urls) => Promise.all(urls.map((each) => IFrameWorker.load(inside, each)));
    IFrameWorker.load(inside, url).then(() => {
      this.inside = inside;
      this.waiting.splice(0).forEach((data) => this.postMessage(data));
    });
  }

  postMessage(data) {
    if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
    else this.waiting.push(data);
  }

  static load(inside, url) {
    return new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      Object.assign(script, { src: url, onload: resolve, onerror: reject });
      inside.document.body.append(script);
    });
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
