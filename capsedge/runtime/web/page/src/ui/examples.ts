/** Digits to begin with, also for those who draw with no pointer. */
import { byId, make } from "./dom.js";

const FILES = import.meta.glob<string>("../../../../../zoo/samples/{digit-?,overlapping-2-4}.png", { eager: true, query: "?url", import: "default" });

/** Offer the examples; `take` is told which one was chosen. Returns the first choice. */
export function offerExamples(take: (image: Blob, name: string) => void): () => Promise<void> {
  const chosen = Object.entries(FILES).map(([path, address]) => {
    const name = path.replace(/^.*\/(digit-|overlapping-)|\.png$/g, "").replace("-", " and ");
    const load = async () => take(await (await fetch(address)).blob(), name);
    const image = make("img", { src: address, alt: "", width: 28, height: 28 });
    const button = make("button", { type: "button", className: "example", title: name }, image);
    button.setAttribute("aria-label", `Example: ${name}`);
    button.addEventListener("click", () => void load());
    return { button, load };
  });
  byId("examples").replaceChildren(...chosen.map(({ button }) => button));
  return async () => chosen[7]?.load();
}
