// The tokens of the query: their colours, and the chips that stand under the search box.

import { make, unseen } from "./dom.js";

const COLOURS = 8;

/** The tokens of one answer's query. A token that is compared has a colour, `hue`; the others have none. */
export class Tokens {
  constructor(queryTokens, hits) {
    const matched = new Set(hits.flatMap((hit) => (hit.matches ?? []).map((match) => String(match.query_span))));
    this.all = queryTokens.map((token, place) => {
      const compared = token.status !== "without_list";
      const inHits = matched.has(String(token.span));
      return { ...token, place, compared, inHits, hue: null };
    });
    // Those that are seen in the hits choose their colours first.
    const first = this.all.filter((token) => token.compared && token.inHits);
    const rest = this.all.filter((token) => token.compared && !token.inHits);
    [...first, ...rest].forEach((token, hue) => (token.hue = hue));
    this.hits = hits;
    this.bySpan = new Map(this.all.map((token) => [String(token.span), token]));
  }

  at(span) {
    return this.bySpan.get(String(span));
  }

  /** The words that stand for a token, lower case: as the query has it, and as the hits have it. */
  words() {
    const words = new Map();
    for (const match of this.hits.flatMap((hit) => hit.matches ?? [])) {
      words.set(match.document_token.toLowerCase(), this.at(match.query_span));
    }
    for (const token of this.all) if (token.compared) words.set(token.text.toLowerCase(), token);
    return words;
  }
}

/** The class that gives an element a token's colour; after eight colours they come again, striped. */
export function hueClass(token) {
  if (token === null || token === undefined) return "sentence";
  return `t${token.hue % COLOURS}${token.hue >= COLOURS ? " striped" : ""}`;
}

/** The query, token by token: a button for each that is compared. */
export function showTokens(tokens, chosen, choose) {
  const items = tokens.all.map((token) => {
    if (!token.compared) {
      const why = "never compared: it has no list";
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
