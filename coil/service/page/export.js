// The hits shown as a file, made in the browser, and the address of what is shown.

import { byId, make } from "./dom.js";

/** What a file has of each hit; with two systems, the hits of one after those of the other. */
const hitsOf = ({ views }) =>
  views.flatMap(({ by, answer }) =>
    answer.hits.map(({ rank, doc_id, score, share, text, fields, chunk, duplicates }) => ({
      by,
      rank,
      doc_id,
      score,
      share,
      text,
      fields,
      chunk,
      duplicates,
    })),
  );

/** The hits with what they are an answer to. */
export function asJson(shown) {
  const { index, q: query, filter } = shown.state;
  return `${JSON.stringify({ index, query, filter: filter || null, hits: hitsOf(shown) }, null, 2)}\n`;
}

/** A table with a column for every field. */
export function asCsv(shown) {
  const hits = hitsOf(shown);
  const fields = [...new Set(hits.flatMap((hit) => Object.keys(hit.fields ?? {})))];
  const own = ["by", "rank", "doc_id", "score", "share", "text"];
  const header = [...own, ...fields.map((name) => (own.includes(name) ? `fields.${name}` : name))];
  const rows = hits.map((hit) => [...own.map((name) => hit[name]), ...fields.map((name) => hit.fields?.[name])]);
  return [header, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** A cell as RFC 4180 has it. A text that a spreadsheet would take for a formula gets an apostrophe in front. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Hand a text to the browser as a file to keep. */
export function download(text, name, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A name for the file, from the query. */
export const fileName = ({ state }, ending) => {
  const words = state.q.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return `${["coil", ...words].join("-").slice(0, 60)}.${ending}`;
};

/** Copy a text; where the browser allows no clipboard (a page without TLS from elsewhere), by way of a field. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { class: "unseen", readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/** Copy the address of what is shown, and say so. */
export async function copyLink() {
  const button = byId("copy-link");
  const done = await copyText(location.href);
  button.focus();
  byId("status").textContent = done ? "Link copied" : "The browser does not allow copying; take the address from its bar";
  button.textContent = done ? "Link copied" : "Cannot copy";
  setTimeout(() => (button.textContent = "Copy link"), 2000);
}
