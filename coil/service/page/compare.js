// Two systems side by side over the same index: which found what, and what moved.

import { make, plural, unseen } from "./dom.js";
import { hitCard } from "./hits.js";
import { SYSTEMS } from "./systems.js";

/** Two columns. A view has the answer of one system in it. */
export function sideBySide(first, second) {
  const systems = [first, second].map((view) => SYSTEMS.find(({ by }) => by === view.by));
  const ranks = [first, second].map(({ answer }) => new Map(answer.hits.map((hit) => [hit.doc_id, hit.rank])));
  const [mine, others] = [first.answer.hits, second.answer.hits];
  const both = mine.filter((hit) => ranks[1].has(hit.doc_id)).length;
  const compared = make(
    "div",
    { class: "compare" },
    make(
      "p",
      { class: "tally" },
      `${plural(both, "document")} found by both, ${mine.length - both} by ${systems[0].name} only, `,
      `${others.length - both} by ${systems[1].name} only.`,
    ),
    column(systems[0], first, ranks[1], systems[1]),
    column(systems[1], second, ranks[0], systems[0]),
  );
  showTwins(compared);
  return compared;
}

function column({ by, name, what }, view, others, rival) {
  const cards = view.answer.hits.map((hit) =>
    hitCard(hit, { ...view, note: badge(hit, others.get(hit.doc_id), name, rival.name) }),
  );
  return make(
    "section",
    { class: "column", "aria-label": name, "data-system": by },
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
    unseen(` compared with number ${otherRank} with ${rival}`),
  );
}

/** Highlight the same hit in the other column. */
function showTwins(compared) {
  const mark = (target) => {
    const at = target?.closest?.(".hit");
    for (const card of compared.querySelectorAll(".hit")) {
      card.classList.toggle("twin", Boolean(at) && card !== at && card.dataset.doc === at.dataset.doc);
    }
  };
  compared.addEventListener("pointerover", (event) => mark(event.target));
  compared.addEventListener("pointerleave", () => mark(null));
  compared.addEventListener("focusin", (event) => mark(event.target));
  compared.addEventListener("focusout", () => mark(null));
}
