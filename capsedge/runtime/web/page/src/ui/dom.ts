/** Small helpers for elements; text from files enters the page only as text, never as HTML. */

/** The element with an id, which must be of the given class. */
export function byId<T extends Element = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as Element as T;
}

/** A new element with properties and children. */
export function make<Name extends keyof HTMLElementTagNameMap>(
  name: Name, properties: Partial<HTMLElementTagNameMap[Name]> = {}, ...children: (Node | string)[]
): HTMLElementTagNameMap[Name] {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** A number for display: two decimals, and never "-0.00". */
export function decimal(value: number): string {
  return value.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "\u2212");
}
