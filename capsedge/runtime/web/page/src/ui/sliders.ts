/** Sliders for the dimensions of the chosen capsule's pose. */
import { byId, decimal, make } from "./dom.js";

const STEPS = 100; // steps to either side of the network's own value
const REACH = 0.6; // range to either side, as a share of the pose's length
const LEAST = 0.25; // range for a pose near zero; Sabour et al. 2017, section 5.1, vary each dimension by this much

interface Slider {
  range: HTMLInputElement;
  value: HTMLOutputElement;
}

export class Sliders {
  private readonly group = byId("sliders");
  private sliders: Slider[] = [];
  private own = new Float32Array(0);
  private reach = LEAST;

  /** @param turned is called when the user moves a slider. */
  constructor(private readonly turned: () => void) {
    this.group.addEventListener("input", () => {
      this.label();
      this.turned();
    });
    byId("reset").addEventListener("click", () => {
      this.show(this.own);
      this.turned();
    });
  }

  /** Set the sliders to a pose that the network computed. */
  show(pose: Float32Array): void {
    this.own = pose.slice();
    this.reach = Math.max(LEAST, REACH * Math.hypot(...pose));
    if (this.sliders.length !== pose.length) this.make(pose.length);
    for (const { range } of this.sliders) range.value = "0";
    this.label();
  }

  /** The pose that the sliders are set to. */
  pose(): Float32Array {
    return this.own.map((value, k) => value + (this.reach * Number(this.sliders[k]?.range.value ?? 0)) / STEPS);
  }

  private make(count: number): void {
    this.sliders = Array.from({ length: count }, (_, k) => {
      const range = make("input", { type: "range", min: String(-STEPS), max: String(STEPS), step: "1", value: "0" });
      range.setAttribute("aria-label", `Dimension ${k}`);
      return { range, value: make("output") };
    });
    const rows = this.sliders.map(({ range, value }, k) => make("div", { className: "slider" }, make("span", {}, String(k)), range, value));
    this.group.replaceChildren(...rows);
  }

  private label(): void {
    for (const [k, value] of this.pose().entries()) {
      const slider = this.sliders[k];
      if (!slider) continue;
      slider.value.textContent = decimal(value);
      slider.range.setAttribute("aria-valuetext", decimal(value));
      slider.range.style.setProperty("--at", `${50 + Number(slider.range.value) / 2}%`);
    }
  }
}
