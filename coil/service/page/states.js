// What is shown instead of results: loading, no query, no hits, an error.

import * as api from "./api.js";
import { make } from "./dom.js";
import { nameOf } from "./hits.js";
import { textOf } from "./text.js";

/** Grey placeholders while something loads. */
export function waiting(words) {
  return make(
    "div",
    { class: "waiting", role: "status" },
    make("span", { class: "unseen" }, words),
    [0, 1, 2].map(() => make("div", { class: "ghost", "aria-hidden": "true" }, make("i"), make("i"), make("i"))),
  );
}

/** A problem: what, why, what to do, and the request id for the server's log. */
export function problemCard(problem, again, label = "Try again") {
  return make(
    "div",
    { class: "state problem", role: "alert" },
    make("h2", {}, problem.title ?? "Something went wrong"),
    make("p", {}, problem.detail ?? problem.message),
    problem.remedy && make("p", { class: "remedy" }, problem.remedy),
    make("button", { type: "button", class: "plain", on: { click: again } }, label),
    problem.requestId && make("p", { class: "aside" }, "Request ", make("code", {}, problem.requestId)),
  );
}

const byWords = ({ by }) => by === "tokens" || by === "bm25";

/** No hits: possible reasons, and a button for each. A field in the filter that no document has is likely a typo. */
export function nothingFound(state, { unknown_fields: unknown = [] }, change) {
  const way = (words, changes) =>
    make("button", { type: "button", class: "plain", on: { click: () => change(changes) } }, words);
  return make(
    "div",
    { class: "state" },
    make("h2", {}, "Nothing found"),
    make(
      "p",
      {},
      unknown.length
        ? `No document has the field ${unknown.map((name) => `“${name}”`).join(" or ")} of the filter.`
        : state.filter
        ? "No document matches both the filter and this query."
        : byWords(state)
          ? "No document contains a word of this query. COIL also finds documents that say it in other words."
          : "No document in this index matches this query.",
    ),
    make(
      "p",
      { class: "ways" },
      state.filter && way("Search without the filter", { filter: "" }),
      byWords(state) && way("Search by COIL", { by: "coil", beside: null }),
    ),
  );
}

/** The index has no documents. */
export function emptyIndex(facts) {
  return make(
    "div",
    { class: "state" },
    make("h2", {}, "This index is empty"),
    make(
      "p",
      {},
      "It has no documents yet. Add some on the command line with ",
      make("code", {}, `coil add ${facts.name}.coil FILE`),
      facts.writable ? ", or upload them here, under About." : ".",
    ),
  );
}

/** No query yet: what this is, and some examples. */
export function welcome(examples, ask) {
  return make(
    "div",
    { class: "state welcome" },
    make("h2", {}, "Exact words in context"),
    make(
      "p",
      {},
      "COIL looks up each word of your query in its own list, like a classic search engine. Rare words weigh more, and " +
        "even more if their context fits that of your query. The similarity of the texts as a whole is added. The more a " +
        "word adds to the score, the darker it is shaded.",
    ),
    examples.length > 0 && make("p", { class: "aside" }, "Examples"),
    make(
      "ul",
      { class: "examples" },
      examples.map((example) =>
        make("li", {}, make("button", { type: "button", class: "example", on: { click: () => ask(example) } }, example)),
      ),
    ),
  );
}

// The index of `coil demo` has its own examples.
const OF_THE_DEMO = [
  "cancel a task that takes too long",
  "copy a file with its metadata",
  "the most common elements of a list",
];

/** Queries that this index can answer: beginnings of documents about its most frequent words. */
export async function findExamples(index, facts) {
  if (index === "python-docs") return OF_THE_DEMO;
  const stems = (facts.longest_lists ?? []).map(([key]) => key).filter((key) => /^\p{L}{4,}$/u.test(key));
  const asked = stems.slice(0, 4).map((q) => api.search({ index, q, k: 1, filter: "" }, "bm25"));
  const answers = await Promise.allSettled(asked);
  const found = answers.flatMap(({ value }) => (value?.hits.length ? [question(value.hits[0])] : []));
  return [...new Set(found)].slice(0, 3);
}

function question(hit) {
  const name = nameOf(hit);
  const text = textOf(hit);
  const [sentence] = (name === hit.doc_id ? text.slice(text.front, text.length).trim() : name).split(/(?<=[.!?:;])\s|\n/);
  const words = sentence.replace(/[.!?:;,]+$/, "").split(/\s+/);
  const some = words.slice(0, 8);
  while (some.length > 2 && some.at(-1).length < 4) some.pop(); // no example ends in "and"
  return some.join(" ").replace(/[.,:;!?]+$/, "").toLowerCase();
}
