/** The classes and how likely each is present; one of them is chosen. */
import type { Prediction, Description } from "capsedge";
import { CONFIDENT } from "../generated/spec.js";
import { byId, decimal, make } from "./dom.js";
import { percent, type Area } from "./mask.js";

const MOST = 12; // maximum number of classes shown, best first

interface Line {
  radio: HTMLInputElement;
  bar: HTMLElement;
  score: HTMLElement;
  label: HTMLElement;
}

export class Classes {
  private readonly list = byId("classes");
  private readonly note = byId("classes-note");
  private lines: Line[] = [];
  /** The class on each line. */
  private shown: number[] = [];

  /** @param choose is called when the user chooses a class. */
  constructor(private readonly choose: (index: number) => void) {
    this.list.addEventListener("change", () => {
      const line = this.lines.findIndex(({ radio }) => radio.checked);
      const index = this.shown[line];
      if (index !== undefined) this.choose(index);
    });
  }

  /** Create the lines for a model. */
  reset(description: Description): void {
    const count = description.task === "segmentation" ? 0 : Math.min(description.labels.length, MOST);
    this.lines = Array.from({ length: count }, makeLine);
    this.shown = this.lines.map((_, k) => k);
    this.list.replaceChildren(...this.lines.map(({ radio }) => radio.parentElement as HTMLElement));
    for (const [k, line] of this.lines.entries()) line.label.textContent = description.labels[k] ?? "";
    const length = description.routing === "em" ? "activation" : "length";
    const kind = description.scoreKind === "length" ? `The ${length} of each class capsule.` : "The probability of each class.";
    const few = description.labels.length > count ? ` The best ${count} of ${description.labels.length}.` : "";
    this.note.textContent = count ? kind + few : "";
  }

  /** Show an answer and the chosen class. */
  show(prediction: Prediction, chosen: number | null): void {
    this.list.classList.toggle("atypical", prediction.atypical !== null);
    if (prediction.scores.length > MOST) this.shown = prediction.ranking.slice(0, MOST).map(({ index }) => index);
    const labels = new Map(prediction.ranking.map(({ index, label }) => [index, label]));
    for (const [k, line] of this.lines.entries()) {
      const index = this.shown[k] ?? k;
      const score = prediction.scores[index] ?? 0;
      line.label.textContent = labels.get(index) ?? line.label.textContent;
      line.score.textContent = decimal(score);
      line.bar.style.transform = `scaleX(${Math.min(1, Math.max(0, score))})`;
      line.radio.checked = index === chosen;
      line.radio.parentElement?.classList.toggle("present", score >= CONFIDENT);
    }
  }

  /** Show the values that a regression estimates. */
  values(prediction: Prediction): void {
    const rows = prediction.values.map(({ name, value, unit }) =>
      make("p", { className: "value" }, make("span", {}, name), make("b", {}, `${Number(value.toPrecision(4))} ${unit}`)),
    );
    this.list.replaceChildren(...rows);
    this.note.textContent = "What the network estimates.";
  }

  /** Show how much of the image each class covers, in its colour. */
  areas(areas: readonly Area[]): void {
    const rows = areas.slice(0, MOST).map(({ label, share, colour }) => {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = `rgb(${colour.join(" ")})`;
      return make("p", { className: "value" }, swatch, make("span", {}, label), make("b", {}, percent(share)));
    });
    this.list.replaceChildren(...rows);
    const few = areas.length > MOST ? ` The largest ${MOST} of ${areas.length}.` : "";
    this.note.textContent = `The share of each class.${few}`;
  }
}

function makeLine(): Line {
  const radio = make("input", { type: "radio", name: "class" });
  const label = make("span", { className: "name" });
  const bar = make("span", { className: "fill" });
  const score = make("span", { className: "score" });
  make("label", { className: "line" }, radio, label, make("span", { className: "track" }, bar), score);
  return { radio, bar, score, label };
}
