// What stands where results would: waiting, nothing asked, nothing found, something wrong.

import * as api from "./api.js";
import { make } from "./dom.js";
import { nameOf } from "./hits.js";

/** Places where something will be, calm and grey. */
export function waiting(words) {
  return make(
    "div",
    { class: "waiting", role: "status" },
    make("span", { class: "unseen" }, words),
    [0, 1, 2].map(() => make("div", { class: "ghost", "aria-hidden": "true" }, make("i"), make("i"), make("i"))),
  );
}

/** A problem: what, why, what to do, and the number under which the server's log has it. */
export function problemCard(problem, again) {
  return make(
    "div",
    { class: "state problem", role: "alert" },
    make("h2", {}, problem.title ?? "This page has a fault"),
    make("p", {}, problem.detail ?? problem.message),
    problem.remedy && make("p", { class: "remedy" }, problem.remedy),
    make("button", { type: "button", class: "plain", on: { click: again } }, "Try again"),
    problem.requestId && make("p", { class: "aside" }, "Request ", make("code", {}, problem.requestId)),
  );
}

const byWords = ({ by }) => by === "tokens" || by === "bm25";

/** No hits: what might be in the way, each with a way out. */
export function nothingFound(state, change) {
  const way = (words, changes) =>
    make("button", { type: "button", class: "plain", on: { click: () => change(changes) } }, words);
  return make(
    "div",
    { class: "state" },
    make("h2", {}, "Nothing found"),
    make(
      "p",
      {},
      state.filter
        ? "No document that the filter lets through matches this query."
        : byWords(state)
          ? "No document has a word of this query. By COIL, documents that say it in other words are found too."
          : "No document of this index matches this query.",
    ),
    make(
      "p",
      { class: "ways" },
      state.filter && way("Search without the filter", { filter: "" }),
      byWords(state) && way("Search by COIL", { by: "coil", beside: null }),
    ),
  );
}

/** Nothing can be found yet. */
export function emptyIndex(facts) {
  return make(
    "div",
    { class: "state" },
    make("h2", {}, "This index is empty"),
    make(
      "p",
      {},
      "It has no documents yet. Add some on the command line, with ",
      make("code", {}, `coil add ${facts.name}.coil FILE`),
      facts.writable ? ", or upload them here, under About." : ".",
    ),
  );
}

/** Nothing asked yet: what this is, and some questions to begin with. */
export function welcome(examples, ask) {
  return make(
    "div",
    { class: "state welcome" },
    make("h2", {}, "Exact words, and what they mean"),
    make(
      "p",
      {},
      "COIL looks up each word of your query in its own list, as a classic search engine does. Rare words weigh more, " +
        "and more again where they mean what they mean in your query; then comes what the text says as a whole. The " +
        "stronger a word is shaded, the more it adds.",
    ),
    examples.length > 0 && make("p", { class: "aside" }, "Ask for example"),
    make(
      "ul",
      { class: "examples" },
      examples.map((example) =>
        make("li", {}, make("button", { type: "button", class: "example", on: { click: () => ask(example) } }, example)),
      ),
    ),
  );
}

// The index that `coil demo` makes has questions of its own.
const OF_THE_DEMO = [
  "cancel a task that takes too long",
  "copy a file with its metadata",
  "the most common elements of a list",
];

/** Questions that this index can answer: beginnings of documents about its most frequent words. */
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
  const [sentence] = (name === hit.doc_id ? hit.text : name).split(/(?<=[.!?:;])\s|\n/);
  const words = sentence.replace(/[.!?:;,]+$/, "").split(/\s+/);
  const some = words.slice(0, 8);
  while (some.length > 2 && some.at(-1).length < 4) some.pop(); // no question ends in "and"
  return some.join(" ").toLowerCase();
}
