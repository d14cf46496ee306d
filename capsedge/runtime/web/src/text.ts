// Control, unassigned and private characters, surrogates, separators. Joiners, which emoji need, reorder nothing.
const HARMFUL = /(?![\u200c\u200d])[\p{C}\p{Zl}\p{Zp}]/gu;
const SHORT: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** The text as one line without invisible or reordering characters, which become escapes such as `\x1b`. */
export function printable(text: string): string {
  return text.replace(HARMFUL, (found) => SHORT[found] ?? escaped(found.codePointAt(0) ?? 0));
}

/** At most `most` characters of a text, made printable. */
export function short(text: string, most = 80): string {
  return printable(text.length > most ? `${text.slice(0, most)}...` : text);
}

function escaped(code: number): string {
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  if (code < 0x10000) return `\\u${code.toString(16).padStart(4, "0")}`;
  return `\\U${code.toString(16).padStart(8, "0")}`;
}

/** A whole number with thousands separators, as used in messages. */
export function grouped(count: number): string {
  return count.toLocaleString("en-US");
}
