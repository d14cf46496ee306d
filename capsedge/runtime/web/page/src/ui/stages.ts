/** How long each stage takes. */
import { byId, make } from "./dom.js";

const STAGES = ["prepare", "run", "decode", "draw"] as const;
export type Stage = (typeof STAGES)[number];

export class Stages {
  private readonly values = new Map<Stage, HTMLElement>();

  constructor() {
    for (const stage of STAGES) {
      const value = make("dd", {}, "\u2013");
      this.values.set(stage, value);
      byId("stages").append(make("div", {}, make("dt", {}, stage), value));
    }
  }

  /** @param milliseconds how long the stage took; null if it did not run. */
  show(stage: Stage, milliseconds: number | null): void {
    const value = this.values.get(stage);
    if (value) value.textContent = milliseconds === null ? "\u2013" : `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
  }
}
