// JSON with whole numbers beyond 2^53, which JavaScript's numbers would round: here they are BigInt.

const MAYBE = /[\s:,[-]\d{16}/; // texts may have so many digits, too
const PARTS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g; // strings, to skip them; numbers

const isRounded = (part) => /^-?\d+$/.test(part) && !Number.isSafeInteger(Number(part));

/** The value of a JSON text. */
export function parseJson(text) {
  if (!MAYBE.test(text)) return JSON.parse(text);
  let mark; // what the strings that stand for these numbers begin with, and no other string
  do mark = `${Math.random()}:`;
  while (text.includes(mark));
  const quoted = text.replace(PARTS, (part) => (isRounded(part) ? `"${mark}${part}"` : part));
  const restore = (_, value) =>
    typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value;
  return JSON.parse(quoted, restore);
}

/** The JSON text of a value, as `JSON.stringify` writes it; `step` indents each level. */
export function writeJson(value, step = "", indent = "") {
  if (typeof value === "bigint") return String(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const inner = indent + step;
  const colon = step ? ": " : ":";
  const parts = Array.isArray(value)
    ? value.map((one) => writeJson(one, step, inner))
    : Object.entries(value)
        .filter(([, one]) => one !== undefined)
        .map(([name, one]) => `${JSON.stringify(name)}${colon}${writeJson(one, step, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!parts.length) return open + close;
  const [before, after] = step ? [`\n${inner}`, `\n${indent}`] : ["", ""];
  return `${open}${before}${parts.join(`,${before}`)}${after}${close}`;
}
