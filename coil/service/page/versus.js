// Why a hit ranks above or below another one: the parts of two scores, side by side.

import { make, number, signed, unseen } from "./dom.js";
import { nameOf, partsOf } from "./hits.js";
import { hueClass } from "./tokens.js";

/** Compare the parts with those of another hit, largest difference first. */
export function versus(mine, rival, hit, view) {
  const next = hit?.rank ? hit.rank < rival.rank : false;
  const above = view.sorted ? mine.score > rival.score : next; // sorted by a field, the next hit may have a higher score
  const spans = new Map();
  const put = (told, side) => {
    for (const part of partsOf(told, view.tokens)) {
      const key = part.token ? part.token.place : "sentence";
      if (!spans.has(key)) spans.set(key, { ...part, values: [null, null] });
      spans.get(key).values[side] = part.value;
    }
  };
  put(mine, 0);
  put(rival, 1);
  const parts = [...spans.values()]
    .map((part) => ({ ...part, difference: (part.values[0] ?? 0) - (part.values[1] ?? 0) }))
    .sort((a, b) => Math.abs(b.difference) - Math.abs(a.difference));
  const widest = Math.max(...parts.map((part) => Math.abs(part.difference)), 1e-9);
  const cell = (value) => (value === null ? make("span", { class: "aside" }, "–", unseen("no match")) : number(value));
  const line = (part) =>
    make(
      "tr",
      { class: hueClass(part.token) },
      make("th", { scope: "row" }, make("span", { class: "dot", "aria-hidden": "true" }), part.name),
      part.values.map((value) => make("td", { class: "figure" }, cell(value))),
      make(
        "td",
        { class: `figure lead ${part.difference >= 0 ? "for" : "against"}` },
        make("b", {}, signed(part.difference)),
        make("span", {
          class: "lean",
          "aria-hidden": "true",
          vars: { width: `${((50 * Math.abs(part.difference)) / widest).toFixed(1)}%` },
        }),
      ),
    );
  const total = mine.score - rival.score;
  return make(
    "section",
    { class: "versus" },
    make("h3", {}, heading(hit, next, view.sorted)),
    make(
      "p",
      {},
      reason(parts, above),
      " ",
      make("span", { class: "aside" }, `Compared with number ${rival.rank}, ${nameOf(rival)}.`),
    ),
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("th", { scope: "col" }, "Part"),
          [hit?.rank ? `Number ${hit.rank}` : "This one", `Number ${rival.rank}`, "Difference"].map((name) =>
            make("th", { scope: "col", class: "figure" }, name),
          ),
        ),
      ),
      make("tbody", {}, parts.map(line)),
      make(
        "tfoot",
        {},
        make(
          "tr",
          {},
          make("th", { scope: "row" }, "Score"),
          [number(mine.score), number(rival.score)].map((value) => make("td", { class: "figure" }, value)),
          make("td", { class: "figure lead" }, make("b", {}, signed(total))),
        ),
      ),
    ),
  );
}

function heading(hit, next, sorted) {
  const other = next ? "next" : hit?.rank ? "previous" : "last";
  return sorted ? `Compared with the ${other} hit` : `Why does it rank ${next ? "above" : "below"} the ${other} hit?`;
}

function reason(parts, above) {
  const [most] = parts.filter((part) => (above ? part.difference > 0 : part.difference < 0));
  if (!most) return "They have the same score; the document that was added first comes first.";
  const what = most.token ? `“${most.name}”` : "The text as a whole";
  return `${what} makes the largest difference: ${signed(most.difference)}.`;
}
