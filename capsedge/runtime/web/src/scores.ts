/** From the outputs of a model to its answer, as docs/reference/runtime.md ("Scores") specifies it. */
import { CapsedgeError } from "./errors.js";
import type { ScoreKind } from "./generated/spec.js";
import { short } from "./text.js";

/** A class and its score. */
export interface Ranked {
  index: number;
  label: string;
  score: number;
}

/** Scores in float64: lengths and probabilities unchanged, logits through softmax (several labels: sigmoid). */
export function scoresOf(values: Float32Array, kind: ScoreKind | "", multiLabel: boolean): Float64Array {
  const found = Float64Array.from(values);
  if (kind !== "logits") return found;
  if (multiLabel) return found.map(sigmoid);
  const most = found.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = found.map((value) => Math.exp(value - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

function sigmoid(value: number): number {
  const small = Math.exp(-Math.abs(value)); // the two halves never overflow
  return (value >= 0 ? 1 : small) / (1 + small);
}

/** At most `top` classes with a score of at least `threshold`, best first, ties in class order. */
export function ranked(
  scores: Float64Array,
  label: (index: number) => string,
  top: number | null,
  threshold: number | null,
): Ranked[] {
  const all = Array.from(scores, (score, index) => ({ index, label: label(index), score }));
  const chosen = threshold === null ? all : all.filter((each) => each.score >= threshold);
  return chosen.sort((a, b) => b.score - a.score || a.index - b.index).slice(0, top ?? undefined);
}

/** Refuse an answer with NaN or infinite values. */
export function checkFinite(values: Float32Array, name: string): void {
  if (values.every(Number.isFinite)) return;
  throw new CapsedgeError(
    "file",
    `The model computed '${short(name)}' with values that are NaN or infinite.`,
    "The weights may be damaged: run `capsedge verify` on the file.",
  );
}
