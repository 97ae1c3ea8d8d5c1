// The words of the query: their colours, and their chips below the search box.

import { make, unseen } from "./dom.js";

const COLOURS = 8;

/** The words of a query in the answers of one or two systems. A word that is looked up has a colour, `hue`. */
export class Tokens {
  constructor(answers) {
    const hits = answers.flatMap((answer) => answer.hits);
    const matched = new Set(hits.flatMap((hit) => (hit.matches ?? []).map((match) => String(match.query_span))));
    // A system that compares no words knows less about them than the other one.
    const known = answers.find(({ query_tokens: told = [] }) => told.some(({ status }) => status !== "not_compared"));
    this.all = ((known ?? answers[0]).query_tokens ?? []).map((token, place) => {
      const compared = token.status === "listed";
      const inHits = matched.has(String(token.span));
      return { ...token, place, compared, inHits, hue: null };
    });
    // Words that occur in the hits choose their colours first.
    const first = this.all.filter((token) => token.compared && token.inHits);
    const rest = this.all.filter((token) => token.compared && !token.inHits);
    [...first, ...rest].forEach((token, hue) => (token.hue = hue));
    this.bySpan = new Map(this.all.map((token) => [String(token.span), token]));
  }

  /** More hits were added: words that were in none of the earlier ones keep their colours. */
  see(hits) {
    for (const match of hits.flatMap((hit) => hit.matches ?? [])) {
      const token = this.at(match.query_span);
      if (token) token.inHits = true;
    }
  }

  at(span) {
    return this.bySpan.get(String(span));
  }
}

/** The class for the colour of a token; after eight colours they repeat, striped. */
export function hueClass(token) {
  if (token === null || token === undefined) return "sentence";
  return `t${token.hue % COLOURS}${token.hue >= COLOURS ? " striped" : ""}`;
}

/** The query, word by word: a button for each that is looked up. */
export function showTokens(tokens, chosen, choose) {
  const items = tokens.all.map((token) => {
    if (!token.compared) {
      const why = token.status === "not_compared" ? "not looked up: only the text as a whole counts" : "not looked up: it has no list";
      return make("li", {}, make("span", { class: "chip silent", title: why }, token.text, unseen(`, ${why}`)));
    }
    const pressed = chosen === token.place;
    const none = token.inHits ? null : unseen(", in none of the hits");
    return make(
      "li",
      {},
      make(
        "button",
        {
          type: "button",
          class: `chip ${hueClass(token)}${token.inHits ? "" : " absent"}`,
          "aria-pressed": String(pressed),
          "data-token": token.place,
          title: token.inHits ? "Show its matches across the hits" : "In none of these hits",
          on: { click: () => choose(pressed ? null : token.place) },
        },
        make("span", { class: "dot", "aria-hidden": "true" }),
        token.text,
        none,
      ),
    );
  });
  return make("ul", { class: "chips" }, items);
}
