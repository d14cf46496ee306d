/** The controls for choosing a model, its iterations and what runs it. */
import type { Provider } from "capsedge";
import type { ModelSource } from "./engine/messages.js";
import type { FolderModel, ModelFile } from "./folder.js";
import { byId, make } from "./ui/dom.js";

export class Chooser {
  private readonly model = byId<HTMLSelectElement>("model");
  private readonly provider = byId<HTMLSelectElement>("provider");
  private readonly iterations = byId("iterations");
  private models: (FolderModel | File)[] = [];
  private file = 0;

  /** @param chosen is called when another file or provider is chosen. */
  constructor(private readonly chosen: () => Promise<void>) {
    this.model.addEventListener("change", () => void this.useModel());
    this.provider.addEventListener("change", () => void this.chosen());
    this.iterations.addEventListener("change", (event) => {
      this.file = Number((event.target as HTMLInputElement).value);
      void this.chosen();
    });
    byId("chooser").addEventListener("submit", (event) => event.preventDefault());
    if ("gpu" in navigator) return;
    const option = this.provider.querySelector<HTMLOptionElement>("[value=webgpu]");
    if (option) Object.assign(option, { disabled: true, textContent: "WebGPU (not in this browser)" });
  }

  /** Offer the folder's models. */
  offer(models: readonly FolderModel[]): void {
    this.models = [...models];
    this.model.replaceChildren(...models.map(({ name }) => make("option", {}, name)));
  }

  /** Offer a dropped file and choose it. */
  add(file: File): void {
    const same = this.models.findIndex((model) => model instanceof File && model.name === file.name);
    const place = same < 0 ? this.models.length : same;
    this.models[place] = file;
    if (same < 0) this.model.append(make("option", {}, file.name.slice(0, 80)));
    this.model.selectedIndex = place;
    void this.useModel();
  }

  /** Remove a refused file, and go back to the model at an index. */
  remove(file: File, back: number): void {
    const place = this.models.indexOf(file);
    if (place < 0) return;
    this.models.splice(place, 1);
    this.model.options[place]?.remove();
    this.model.selectedIndex = Math.min(back, this.models.length - 1);
    this.offerIterations();
  }

  get place(): number {
    return this.model.selectedIndex;
  }

  /** What is chosen; null if there is nothing to choose. */
  source(): ModelSource | null {
    const model = this.models[this.model.selectedIndex];
    if (!model) return null;
    return model instanceof File ? { file: model } : (model.files[this.file] ?? null);
  }

  wanted(): Provider {
    return this.provider.value === "webgpu" ? "webgpu" : "wasm";
  }

  /** Choose the model selected in the list. */
  useModel(): Promise<void> {
    this.offerIterations();
    return this.chosen();
  }

  private offerIterations(): void {
    const model = this.models[this.model.selectedIndex];
    const files: readonly ModelFile[] = model && !(model instanceof File) ? model.files : [];
    this.file = files.length - 1;
    this.iterations.hidden = files.length < 2;
    const choices = files.map(({ iterations }, k) => {
      const radio = make("input", { type: "radio", name: "iterations", value: String(k), checked: k === this.file });
      return make("label", {}, radio, make("span", {}, String(iterations)));
    });
    this.iterations.querySelector(".segments")?.replaceChildren(...choices);
  }
}
