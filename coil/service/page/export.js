// The displayed hits as a file, created in the browser; and copying the link.

import { byId, make } from "./dom.js";
import { writeJson } from "./exact.js";

/** The exported properties of each hit; with two systems, the hits of the second follow those of the first. */
const hitsOf = ({ views }) =>
  views.flatMap(({ by, answer }) =>
    answer.hits.map(({ rank, doc_id, score, share, text, fields, chunk, context, duplicates }) => ({
      by,
      rank,
      doc_id,
      score,
      share,
      text,
      fields,
      chunk,
      context,
      duplicates,
    })),
  );

/** The hits with their query. */
export function asJson(shown) {
  const { index, q: query, filter, sort } = shown.state;
  const search = { index, query, filter: filter || null, sort: sort || null };
  return `${writeJson({ ...search, hits: hitsOf(shown) }, "  ")}\n`;
}

/** A table with a column for every field. */
export function asCsv(shown) {
  const hits = hitsOf(shown);
  const fields = [...new Set(hits.flatMap((hit) => Object.keys(hit.fields ?? {})))];
  const own = ["by", "rank", "doc_id", "score", "share", "text"];
  const isTaken = (name) => own.includes(name.replace(/^(?:fields\.)+/, ""));
  const header = [...own, ...fields.map((name) => (isTaken(name) ? `fields.${name}` : name))];
  const valueOf = (hit, name) => (Object.hasOwn(hit.fields ?? {}, name) ? hit.fields[name] : null); // not __proto__
  const rows = hits.map((hit) => [...own.map((name) => hit[name]), ...fields.map((name) => valueOf(hit, name))]);
  return [header, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** A cell according to RFC 4180. A text that a spreadsheet would treat as a formula is prefixed with an apostrophe. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (["number", "bigint", "boolean"].includes(typeof value)) return String(value);
  const text = typeof value === "string" ? value : writeJson(value);
  const safe = /^[=+\-@\t\r\n]/.test(text) ? `'${text}` : text;
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

/** Copy a text; if the browser does not allow clipboard access (no TLS), through a text field. */
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

/** Copy the URL of the current view, and confirm it. */
export async function copyLink() {
  const button = byId("copy-link");
  const done = await copyText(location.href);
  button.focus();
  byId("status").textContent = done ? "Link copied" : "The browser does not allow copying; copy the URL from the address bar";
  button.textContent = done ? "Link copied" : "Cannot copy";
  setTimeout(() => (button.textContent = "Copy link"), 2000);
}
