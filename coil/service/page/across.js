// One query word across all hits, and how well it fits in each.

import { make, number, plural, unseen } from "./dom.js";
import { nameOf } from "./hits.js";
import { markedText } from "./marks.js";
import { figuresOf, fitOf } from "./systems.js";
import { mentionSnippet, placesOf, textOf } from "./text.js";
import { hueClass } from "./tokens.js";

const AROUND = 70;

/** The best mention of a word in each hit, best fit first; then the hits that do not contain it. */
export function acrossHits(token, view, back) {
  const found = [];
  const without = [];
  for (const hit of view.answer.hits) {
    const match = (hit.matches ?? []).find(({ query_span: span }) => String(span) === String(token.span));
    if (match) found.push({ hit, match });
    else without.push(hit);
  }
  const { fit } = figuresOf(found.map(({ match }) => match), view.by);
  const value = (match) => (fit ? fitOf(match, fit) : match.contribution);
  found.sort((a, b) => value(b.match) - value(a.match));
  const most = Math.max(...found.map(({ match }) => value(match)), 1e-9);
  const first = fit ? "best fit first" : "largest contribution first";
  return make(
    "div",
    { class: `across ${hueClass(token)}` },
    make(
      "header",
      {},
      make("h2", {}, make("span", { class: "dot", "aria-hidden": "true" }), `“${token.text}” in the hits`),
      make("button", { type: "button", class: "quiet", id: "across-back", on: { click: back } }, "Back to all hits"),
    ),
    make(
      "p",
      { class: "aside" },
      found.length
        ? `Its best mention in ${found.length > 1 ? "each of " : ""}${plural(found.length, "hit")}, ${first}. The number is ${fit ? `its ${fit}` : "what it adds"}.`
        : "None of the hits contains this word; they were found in other ways.",
    ),
    make(
      "ol",
      { class: "mention-list" },
      found.map(({ hit, match }) => line(hit, match, { value: value(match), most, name: fit ?? "adds" }, view)),
    ),
    without.length > 0 &&
      make(
        "p",
        { class: "aside" },
        `Without it: ${without.map((hit) => `${hit.rank} ${nameOf(hit)}`).slice(0, 12).join(" · ")}`,
        without.length > 12 && ` and ${without.length - 12} more`,
      ),
  );
}

function line(hit, match, { value, most, name }, view) {
  const text = textOf(hit);
  const { before, token, after } = mentionSnippet(text, match, AROUND);
  const places = placesOf([{ ...match, runner_ups: [] }], view.tokens);
  const shown = markedText(text, places, match.document_span, { ...view, choose: null, live: false });
  const marked = shown.length ? shown : token; // a title that is not part of the text
  return make(
    "li",
    { "data-doc": hit.doc_id },
    make(
      "span",
      { class: "figure" },
      unseen(`${name} `),
      make("b", {}, number(value)),
      make("span", {
        class: "mini",
        "aria-hidden": "true",
        vars: { width: `${((100 * Math.max(0, value)) / most).toFixed(1)}%` },
      }),
    ),
    make(
      "div",
      {},
      make("p", { class: "text one" }, before, marked, after),
      make(
        "button",
        { type: "button", class: "title small", on: { click: () => view.open(hit.doc_id) } },
        unseen("Rank "),
        `${hit.rank} · ${nameOf(hit)}`,
      ),
    ),
  );
}
