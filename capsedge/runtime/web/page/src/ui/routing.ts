/** Routing, iteration by iteration and layer by layer. */
import type { Description, TracedLayer } from "capsedge";
import { childMaps, strengthName, strengths } from "../routes.js";
import { byId, decimal, make } from "./dom.js";
import { paintLayers, palette } from "./paint.js";

const BARS = 32; // maximum number of parents whose strength is drawn
const NAMED = 3; // maximum number of parents that a description names

export class Routing {
  private readonly section = byId("routing");
  private readonly steps = byId("steps");
  private readonly note = byId("routing-note");
  private readonly choice = byId<HTMLSelectElement>("layer");
  private trace: readonly TracedLayer[] = [];
  private labels: readonly string[] = [];
  private chosen = 0;

  constructor() {
    this.choice.addEventListener("change", () => this.draw());
  }

  /** Prepare the view for a model. */
  reset(description: Description): void {
    this.trace = [];
    this.labels = description.labels;
    this.section.hidden = description.routing === "" && description.trace === null;
    const layers = description.trace ?? [];
    this.choice.replaceChildren(...layers.map(({ name }, k) => make("option", { value: String(k) }, name)));
    this.choice.value = String(layers.length - 1);
    byId("layer-field").hidden = layers.length < 2;
    this.steps.replaceChildren();
    if (layers.length) return;
    this.note.replaceChildren("This file has no trace of its routing. Export it with ", make("code", {}, "capsedge export --with trace"), ".");
  }

  /** Show the trace that belongs to an answer. */
  show(trace: readonly TracedLayer[], chosen: number): void {
    this.trace = trace;
    this.chosen = chosen;
    this.draw();
  }

  /** Draw the chosen layer in the page's current colours. */
  draw(): void {
    const number = Number(this.choice.value);
    const layer = this.trace[number];
    if (!layer) return;
    const found = strengths(layer);
    const ofClasses = number === this.trace.length - 1 && found[0]?.length === this.labels.length;
    const parent = ofClasses ? this.chosen : strongest(found[found.length - 1]);
    const name = (j: number) => (ofClasses ? (this.labels[j] ?? String(j)) : `type ${j + 1}`);
    const maps = childMaps(layer, parent);
    const most = Math.max(...maps.flatMap(({ values }) => [...values]), 1e-9);
    const tallest = Math.max(...found.flatMap((row) => [...row]), strengthName(layer) === "mean coupling" ? 1e-9 : 1);
    this.note.textContent =
      `Squares, on a root scale: what the capsules of each place add to ${ofClasses ? `“${name(parent)}”` : `${name(parent)}, the strongest`}. ` +
      `Columns: ${strengthName(layer)} of ${ofClasses ? "each class" : "each type"} after the iteration.`;
    const figures = found.map((row, t) => {
      const map = maps[t] ?? { height: 1, width: 1, values: new Float32Array(1) };
      const canvas = make("canvas", { className: map.height > 1 ? "map" : "map strip" });
      const { paper, accent } = palette();
      paintLayers(canvas, map.height, map.width, paper, [{ values: map.values.map((v) => Math.sqrt(v / most)), colour: accent }]);
      const columns = [...row.subarray(0, BARS)].map((v, j) => column(v / tallest, j === parent, ofClasses && row.length <= 12 ? name(j) : ""));
      const figure = make("figure", { className: "step" }, canvas, make("div", { className: "columns" }, ...columns), make("figcaption", {}, `Iteration ${t + 1}`));
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `Iteration ${t + 1}, ${strengthName(layer)}: ${best(row).map((j) => `${name(j)} ${decimal(row[j] ?? 0)}`).join(", ")}`);
      return figure;
    });
    this.steps.replaceChildren(...figures);
  }
}

function strongest(row: Float32Array | undefined): number {
  return row ? row.indexOf(Math.max(...row)) : 0;
}

function best(row: Float32Array): number[] {
  return [...row.keys()].sort((a, b) => (row[b] ?? 0) - (row[a] ?? 0)).slice(0, NAMED);
}

function column(share: number, chosen: boolean, label: string): HTMLElement {
  const bar = make("span", { className: chosen ? "column chosen" : "column" });
  bar.style.setProperty("--share", String(Math.min(1, Math.max(0, share))));
  bar.setAttribute("aria-hidden", "true");
  return make("span", { className: "post" }, bar, make("span", { className: "tick" }, label.slice(0, 3)));
}
