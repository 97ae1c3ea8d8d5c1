// Hits as cards: the text with its matches, and a bar with the parts of the score.

import { make, number, plural, share, unseen } from "./dom.js";
import { isName } from "./filters.js";
import { hrefOf, linkTo } from "./links.js";
import { markedText, rove } from "./marks.js";
import { Text, WHOLE, excerpt, flowing, placesOf, textOf } from "./text.js";
import { hueClass } from "./tokens.js";

/** The parts that add up to a score: the query's tokens in order, then the sentence. */
export function partsOf(hit, tokens) {
  const parts = (hit.matches ?? []).map((match) => ({
    token: tokens.at(match.query_span),
    name: match.query_token,
    value: match.contribution,
  }));
  if (hit.sentence !== null && hit.sentence !== undefined) {
    parts.push({ token: null, name: "sentence", value: hit.sentence });
  }
  return parts;
}

/** A bar whose length is the share of the own score, split into parts; negative parts are hatched. */
export function scoreBar(parts, whole, ofOwn = null) {
  const width = (value) => `${Math.min(100, (100 * value) / whole).toFixed(2)}%`;
  const gains = parts.filter((part) => part.value > 0);
  const losses = parts.filter((part) => part.value < 0);
  const total = gains.reduce((sum, part) => sum + part.value, 0);
  const loss = losses.reduce((sum, part) => sum - part.value, 0);
  const told = parts.map((part) => `${part.name} ${number(part.value)}`).join(", ");
  return make(
    "div",
    {
      class: "bar",
      role: "img",
      "aria-label": `${ofOwn === null ? "" : `${share(ofOwn)} ${OF_OWN}. `}The score consists of ${told || "nothing"}`,
      title: ofOwn === null ? null : `Full bar: ${number(whole)}, the score of your query’s own text`,
    },
    gains.map((part) =>
      make("span", {
        class: `part ${hueClass(part.token)}`,
        title: `${part.name} ${number(part.value)}`,
        vars: { width: width(part.value) },
      }),
    ),
    loss > 0 &&
      make("span", {
        class: "loss",
        title: losses.map((part) => `${part.name} ${number(part.value)}`).join(", "),
        vars: { width: width(Math.min(loss, total)), left: width(Math.max(0, total - loss)) },
      }),
  );
}

export const OF_OWN = "of the score of the query’s own text";

/** The names and values of the bar's parts, in order. */
export function legend(parts) {
  const items = parts.map((part) =>
    make(
      "li",
      { class: hueClass(part.token) },
      make("span", { class: "dot", "aria-hidden": "true" }),
      make("span", {}, part.name),
      " ",
      make("b", {}, number(part.value)),
    ),
  );
  return make("ul", { class: "legend", "aria-hidden": "true" }, items);
}

/** The name of a hit: its title if it has one, otherwise its id. */
export function nameOf(hit) {
  const title = hit.fields?.title;
  return typeof title === "string" && title.trim() ? title.trim() : hit.doc_id;
}

const TAIL = 10; // characters of an id that are always shown: long ids often differ only at their end

/** An id in two parts; if there is no room, the first one is cut. */
function idParts(id) {
  const points = Array.from(id);
  const at = Math.max(0, points.length - TAIL);
  const [head, tail] = [points.slice(0, at).join(""), points.slice(at).join("")];
  return [head && make("span", { class: "head" }, head), make("span", { class: "tail" }, tail)];
}

const SEPARATOR = " › ";

/** Where in its document a hit is: its headings, without what the card shows already (the title, and the path as the id). */
export function trail(hit) {
  const [name, id] = [nameOf(hit), hit.doc_id];
  const isPath = (part) => id.startsWith(part) && /^(?:\.\w+)+$/.test(id.slice(part.length));
  const parts = (hit.context ?? "").split(SEPARATOR).filter((part) => part && part !== name && !isPath(part));
  return parts.length ? make("p", { class: "trail" }, unseen("In: "), parts.join(SEPARATOR)) : null;
}

/**
 * One hit. `view` has: `by` (the system), `tokens`, `strongest` (the largest contribution of all hits), `whole`
 * (the score that fills the bar), `choose` (a word), `open` (the explanation), `narrow` (a filter), and optionally `note`, a badge.
 */
export function hitCard(hit, view) {
  const parts = partsOf(hit, view.tokens);
  const name = nameOf(hit);
  const hasShare = hit.share !== null && hit.share !== undefined;
  const title = make(
    "button",
    {
      type: "button",
      class: name === hit.doc_id ? "title is-id" : "title",
      "data-doc": hit.doc_id,
      title: name === hit.doc_id ? `${hit.doc_id}: why this hit?` : "Why this hit?",
    },
    name === hit.doc_id ? idParts(hit.doc_id) : name,
    unseen(", why?"),
  );
  title.addEventListener("click", () => view.open(hit.doc_id));
  const card = make(
    "li",
    { class: "hit", "data-doc": hit.doc_id },
    make(
      "article",
      {},
      make(
        "header",
        {},
        make("span", { class: "rank" }, unseen("Rank "), String(hit.rank)),
        make("h3", {}, title),
        view.note,
        make(
          "p",
          { class: "score" },
          hasShare && make("strong", { title: `${share(Math.max(0, hit.share))} ${OF_OWN}` }, share(Math.max(0, hit.share)), unseen(` ${OF_OWN}`)),
          make("span", { class: hasShare ? "raw" : "raw alone" }, unseen("score "), number(hit.score)),
        ),
      ),
      trail(hit),
      parts.length > 0 && scoreBar(parts, view.whole, hasShare ? Math.max(0, hit.share) : null),
      parts.length > 0 && legend(parts),
      body(hit, view),
      duplicates(hit, view),
      foot(hit, view, name),
    ),
  );
  card.addEventListener("click", (event) => {
    const busy = event.target.closest("button, a, summary, [role=button]") || String(getSelection());
    if (!busy) view.open(hit.doc_id);
  });
  return card;
}

function body(hit, view) {
  const text = new Text(flowing(hit.text), textOf(hit).front);
  const kept = hit.text.includes("\n") ? "text kept" : "text";
  const places = placesOf(hit.matches, view.tokens);
  const long = text.length - text.front > WHOLE;
  const holder = make("div", { class: "body" });
  const show = (all) => {
    const windows = all ? [[text.front, text.length]] : excerpt(text, places, hit.chunk);
    const shown = windows.flatMap((span, at) => [
      at ? " … " : span[0] > text.front ? "… " : "",
      ...markedText(text, places, span, view),
      at === windows.length - 1 && span[1] < text.length ? " …" : "",
    ]);
    const paragraph = make("p", { class: kept }, shown);
    rove(paragraph);
    holder.replaceChildren(paragraph, ...(long ? [more(all)] : []));
  };
  const more = (all) => {
    const toggle = make("button", { type: "button", class: "more", "aria-expanded": String(all) });
    toggle.textContent = all ? "Show less" : "Show all";
    toggle.addEventListener("click", () => {
      show(!all);
      holder.querySelector(".more").focus();
    });
    return toggle;
  };
  show(false);
  return holder;
}

/** Documents with the same text, which are not listed as hits; expand for their ids. */
function duplicates(hit, view) {
  const ids = hit.duplicates ?? [];
  if (!ids.length) return null;
  const line = (id) =>
    make("li", {}, make("button", { type: "button", class: "copy", title: id, on: { click: () => view.open(id) } }, id));
  return make(
    "details",
    { class: "duplicates" },
    make("summary", {}, `and ${plural(ids.length, "duplicate")}`),
    make("ul", {}, ids.map(line)),
  );
}

const LISTED = 8; // values of a list, such as tags

/** The fields of a hit as `[field, value]`; each value of a list is separate, because a filter matches each of them. */
export const valuesOf = (hit) =>
  Object.entries(hit.fields ?? {}).flatMap(([field, value]) =>
    Array.isArray(value) ? [...new Set(value)].slice(0, LISTED).map((one) => [field, one]) : [[field, value]],
  );

function foot(hit, view, name) {
  const [start, end] = hit.chunk ?? [0, 0];
  const partly = end > 0 && (start > 0 || end < new Text(hit.text).length);
  const facts = valuesOf(hit)
    .filter(([field, value]) => isShown(field, value) && !hrefOf(value))
    .map(([field, value]) => [field, value, condition(field, value)]);
  const links = Object.entries(hit.fields ?? {}).filter(([, value]) => hrefOf(value));
  const items = [
    name !== hit.doc_id && make("code", { class: "id", title: hit.doc_id }, hit.doc_id),
    ...facts.map(([field, value, written]) =>
      written === null
        ? make("span", {}, `${field} ${value}`)
        : make(
            "button",
            { type: "button", class: "field", title: `Only ${written}`, on: { click: () => view.narrow(written) } },
            make("span", {}, field),
            ` ${value}`,
          ),
    ),
    ...links.map(([field, value]) => make("span", { class: "field-link" }, `${field} `, linkTo(hrefOf(value), shortAddress(value)))),
    partly &&
      make(
        "button",
        { type: "button", class: "where", title: "Show in the full text", on: { click: () => view.open(hit.doc_id, true) } },
        `characters ${start}–${end} scored`,
      ),
  ].filter(Boolean);
  return items.length ? make("footer", {}, items) : null;
}

/** A URL without scheme and trailing slash, truncated if it is long. */
function shortAddress(address) {
  const short = address.trim().replace(/^https?:\/\/(?:www\.)?/i, "").replace(/\/$/, "");
  return short.length > 48 ? `${short.slice(0, 47)}…` : short;
}

const isPlain = (value) => ["number", "bigint", "boolean"].includes(typeof value);

/** Whether a card shows a field: its value is short enough to be a choice. */
function isShown(field, value) {
  if (!isName(field) || field === "title") return false;
  return isPlain(value) || (typeof value === "string" && value !== "" && value.length <= 32 && !/["\\\n\r]/.test(value));
}

/** Whether the server compares a number digit by digit; it rounds those of more than 64 bits. */
const isExact = (value) => typeof value !== "bigint" || BigInt.asIntN(64, value) === value;

/** Whether a filter takes a name for something else: `id` is the document's id, and names cannot be quoted. */
const isReserved = (field) => field === "id" || field.toLowerCase() === "not";

/** A field as a filter; null if it is not shown, or if a filter cannot express it. */
export function condition(field, value) {
  if (!isShown(field, value) || isReserved(field)) return null;
  if (isPlain(value)) return isExact(value) ? `${field} = ${value}` : null;
  return `${field} = "${value}"`;
}
