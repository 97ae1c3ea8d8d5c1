// Did you mean: query words that no document contains, and similar words that some contain.

import { byId, make } from "./dom.js";
import { Text } from "./text.js";

/** The query with the word at a span replaced. */
export function withWord(query, [start, end], word) {
  const text = new Text(query);
  return text.slice(0, start) + word + text.slice(end, text.length);
}

let drawn = null; // the answer whose suggestions are displayed

/** The line above the hits. `typing`: the last word may be unfinished, so it is not a mistake yet. */
export function showMeant(answer, typing, ask) {
  const line = byId("meant");
  // Do not redraw for the same answer: leaving the search box for a button must not replace the button.
  if (drawn !== answer) line.replaceChildren(...(answer.suggestions ?? []).map((one) => suggested(one, answer.query, ask)));
  drawn = answer;
  const end = new Text(answer.query.trimEnd()).length;
  for (const part of line.children) part.hidden = typing && Number(part.dataset.end) === end;
  line.hidden = ![...line.children].some((part) => !part.hidden);
}

/** No suggestions. */
export function hideMeant() {
  drawn = null;
  byId("meant").hidden = true;
}

const suggested = ({ word, span, suggestion }, query, ask) =>
  make(
    "span",
    { "data-end": span[1] },
    `No document contains “${word}”. Did you mean `,
    make("button", { type: "button", class: "plain", on: { click: () => ask(withWord(query, span, suggestion)) } }, suggestion),
    "? ",
  );
