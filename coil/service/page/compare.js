// COIL and BM25 side by side: who found what, and what moved.

import { make, plural, unseen } from "./dom.js";
import { hitCard } from "./hits.js";

/** Two columns over the same index. `view` is COIL's, `plainView` the one for BM25. */
export function sideBySide(coil, bm25, view, plainView) {
  const ranks = (hits) => new Map(hits.map((hit) => [hit.doc_id, hit.rank]));
  const [inCoil, inBm25] = [ranks(coil), ranks(bm25)];
  const both = coil.filter((hit) => inBm25.has(hit.doc_id)).length;
  return make(
    "div",
    { class: "compare" },
    make(
      "p",
      { class: "tally" },
      `${plural(both, "document")} found by both, ${coil.length - both} by COIL only, ${bm25.length - both} by BM25 only.`,
    ),
    column("COIL", "words and what they mean", coil, inBm25, view, "BM25"),
    column("BM25", "words and how rare they are", bm25, inCoil, plainView, "COIL"),
  );
}

function column(name, what, hits, others, view, rival) {
  const cards = hits.map((hit) => hitCard(hit, { ...view, note: badge(hit, others.get(hit.doc_id), name, rival) }));
  return make(
    "section",
    { class: "column", "aria-label": name, "data-system": name.toLowerCase() },
    make("h2", {}, name, " ", make("span", { class: "aside" }, what)),
    cards.length ? make("ol", { class: "hits" }, cards) : make("p", { class: "aside" }, "Nothing found."),
  );
}

function badge(hit, otherRank, name, rival) {
  if (otherRank === undefined) return make("span", { class: "badge only" }, `only ${name}`);
  const moved = otherRank - hit.rank;
  if (!moved) return make("span", { class: "badge" }, "same rank", unseen(` with ${rival}`));
  return make(
    "span",
    { class: `badge ${moved > 0 ? "up" : "down"}`, title: `Number ${otherRank} with ${rival}` },
    moved > 0 ? `↑ ${moved}` : `↓ ${-moved}`,
    unseen(` against number ${otherRank} with ${rival}`),
  );
}
