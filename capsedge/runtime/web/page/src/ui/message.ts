/** What went wrong and how to fix it, shown as text only, whatever a file's name contains. */
import { Failure } from "../engine/client.js";
import { byId, make } from "./dom.js";

const MOST = 600; // maximum number of characters

export function showProblem(error: unknown): void {
  const [text, hint] = error instanceof Failure ? [error.problem.message, error.problem.hint] : [error instanceof Error ? error.message : String(error), ""];
  const close = make("button", { type: "button", className: "close" }, "Close");
  close.addEventListener("click", hideProblem);
  byId("message").replaceChildren(make("p", {}, make("b", {}, text.slice(0, MOST)), " ", hint.slice(0, MOST)), close);
  byId("message").hidden = false;
}

export function hideProblem(): void {
  byId("message").hidden = true;
}
