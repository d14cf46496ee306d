/** Example images, which also help users without a pointer: digits, and photographs for colour models. */
import { byId, make } from "./dom.js";

type Take = (image: Blob, name: string, negative: boolean) => void;

const DIGITS = import.meta.glob<string>("../../../../../zoo/samples/{digit-?,overlapping-2-4}.png", { eager: true, query: "?url", import: "default" });
const PHOTOGRAPHS = import.meta.glob<string>("../../../../../zoo/photographs/*.jpg", { eager: true, query: "?url", import: "default" });

/** Offer the examples; `take` gets the chosen one and whether it is light ink on black. Returns the initial choice. */
export function offerExamples(take: Take): () => Promise<void> {
  const digits = offer(DIGITS, "digits", (image, name) => take(image, name, true));
  offer(PHOTOGRAPHS, "photographs", (image, name) => take(image, name, false));
  return async () => digits[7]?.();
}

function offer(files: Record<string, string>, group: string, take: (image: Blob, name: string) => void): (() => Promise<void>)[] {
  const chosen = Object.entries(files).map(([path, address]) => {
    const name = path.replace(/^.*\/(digit-|overlapping-)|^.*\/|\.\w+$/g, "").replace("-", " and ");
    const load = async () => take(await (await fetch(address)).blob(), name);
    const image = make("img", { src: address, alt: "", loading: "lazy", width: 28, height: 28 });
    const button = make("button", { type: "button", className: "example", title: name }, image);
    button.setAttribute("aria-label", `Example: ${name}`);
    button.addEventListener("click", () => void load());
    return { button, load };
  });
  byId(group).replaceChildren(...chosen.map(({ button }) => button));
  return chosen.map(({ load }) => load);
}
