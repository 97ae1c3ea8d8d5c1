// The cost of a search, and facts about the index and its model.

import { byId, bytes, count, make, milliseconds, number, plural, share } from "./dom.js";
import { uploadForm } from "./upload.js";

/** The cost of a search, collapsed below the hits: time by part, mentions scored and skipped. */
export function costStrip(stats, hits, own, facts) {
  const named = [
    ["filter", stats.filter_ms],
    ["encode", stats.encode_ms],
    ["score", stats.score_ms],
    ["fetch", stats.fetch_ms],
  ].map(([name, value]) => ({ name, value: value ?? 0 }));
  const known = named.reduce((sum, { value }) => sum + value, 0);
  const total = Math.max(stats.total_ms ?? known, known);
  const parts = [...named, { name: "rest", value: total - known }].filter(({ value }) => value >= 0.05);
  const looked = stats.mentions_scored ?? 0;
  const ofAll = facts?.mentions ? ` (${share(looked / facts.mentions)} of the index)` : "";
  return [
    make("summary", {}, `${plural(hits, "hit")} in ${milliseconds(total)}`),
    make(
      "div",
      { class: "times" },
      make(
        "span",
        { class: "time-bar", "aria-hidden": "true" },
        parts.map(({ name, value }) =>
          make("span", { class: `time in-${name}`, vars: { width: `${((100 * value) / (total || 1)).toFixed(1)}%` } }),
        ),
      ),
      make(
        "ul",
        {},
        parts.map(({ name, value }) =>
          make("li", { class: `time-name in-${name}` }, make("i", { "aria-hidden": "true" }), `${name} ${milliseconds(value)}`),
        ),
      ),
    ),
    own && make("p", { title: "A document that says what the query says, in the same words, comes close" }, `100% = your query’s own text, ${number(own)}`),
    make(
      "p",
      {},
      `${count(looked)} mentions scored${ofAll}, ${count(stats.mentions_skipped ?? 0)} skipped`,
      stats.sentences_scored || stats.sentences_skipped
        ? ` · ${count(stats.sentences_scored ?? 0)} sentences scored, ${count(stats.sentences_skipped ?? 0)} skipped`
        : "",
    ),
  ].filter(Boolean);
}

const NAMES = {
  documents: "Documents",
  rows: "Texts (documents, or chunks of long ones)",
  deleted_rows: "Deleted, not yet compacted",
  truncated_documents: "Truncated documents",
  mentions: "Mentions",
  lists: "Inverted lists",
  segments: "Segments",
  precision: "Precision",
  long: "Long documents",
  bytes_documents: "Documents on disk",
  bytes_lists: "Lists on disk",
  bytes_a_mention: "Bytes per mention",
};

/** The sheet with the facts of an index and, if it can be changed, an upload form. */
export function showAbout(name, facts, close, added) {
  const sheet = byId("about");
  const model = facts.model ?? {};
  const config = model.config ?? {};
  const value = (key) => {
    const fact = facts[key];
    if (key === "bytes_documents" || key === "bytes_lists") return bytes(fact);
    return typeof fact === "number" ? (Number.isInteger(fact) ? count(fact) : fact.toFixed(1)) : String(fact);
  };
  const known = Object.entries(NAMES).filter(([key]) => facts[key] !== undefined && facts[key] !== null);
  sheet.replaceChildren(
    make(
      "header",
      { class: "sheet-head" },
      make("div", {}, make("p", { class: "over" }, "About the index"), make("h2", { id: "about-title", tabindex: -1, autofocus: true }, name)),
      make(
        "div",
        { class: "sheet-tools" },
        make("button", { type: "button", class: "quiet icon", "aria-label": "Close", on: { click: close } }, "✕"),
      ),
    ),
    make(
      "div",
      { class: "sheet-body", tabindex: 0 },
      facts.writable && uploadForm(name, added, !facts.documents),
      pairs(known.map(([key, label]) => [label, value(key)])),
      make("h3", {}, "Model"),
      pairs([
        ["Name", model.name ?? model.model ?? "bundled with the package"],
        ["Fingerprint", make("code", {}, model.fingerprint ?? "unknown")],
        ...flat(config).map(([key, said]) => [make("code", {}, key), String(said)]),
      ]),
      longest(facts.longest_lists ?? []),
    ),
  );
  sheet.showModal();
}

const pairs = (lines) =>
  make("dl", { class: "facts" }, lines.map(([name, said]) => make("div", {}, make("dt", {}, name), make("dd", {}, said))));

const flat = (value, before = "") =>
  Object.entries(value).flatMap(([key, said]) =>
    said !== null && typeof said === "object" ? flat(said, `${before}${key}.`) : [[before + key, said ?? "none"]],
  );

function longest(lists) {
  if (!lists.length) return null;
  const most = lists[0][1] || 1;
  return make(
    "section",
    {},
    make("h3", {}, "Longest lists"),
    make(
      "ol",
      { class: "longest" },
      lists.map(([key, mentions]) =>
        make(
          "li",
          {},
          make("code", {}, key),
          make("span", { class: "mini", "aria-hidden": "true", vars: { width: `${((100 * mentions) / most).toFixed(1)}%` } }),
          make("span", { class: "figure" }, count(mentions)),
        ),
      ),
    ),
  );
}
