// Texts by code points. The server counts characters as Python does; JavaScript counts some of them twice.

import { findLinks } from "./links.js";

const SURROGATES = /[\ud800-\udfff]/;
export const WHOLE = 520; // texts up to this length are shown in full
const AROUND = 90; // characters on each side of a match that an excerpt shows
const LEAST = 300; // minimum length of an excerpt, if the text is longer
const ROOM = 460; // approximate length of an excerpt

/** A text that can be sliced at the server's offsets. `front` is the end of its front matter. */
export class Text {
  constructor(text, front = 0) {
    this.points = SURROGATES.test(text) ? Array.from(text) : text;
    this.length = this.points.length;
    this.front = front;
  }

  slice(start, end) {
    const cut = this.points.slice(start, end);
    return typeof cut === "string" ? cut : cut.join("");
  }

  /** The links in the text, `{ span, href }`, found once. */
  get links() {
    return (this.found ??= typeof this.points === "string" ? findLinks(this.points) : this.#findLinks());
  }

  #findLinks() {
    let [units, points] = [0, 0]; // read so far; the links come in order
    const count = (until) => {
      for (; units < until; points += 1) units += this.points[points].length;
      return points;
    };
    return findLinks(this.points.join("")).map(({ span, href }) => ({ span: span.map(count), href }));
  }

  /** The characters on both sides of a place. */
  around(at) {
    return this.slice(Math.max(0, at - 1), at + 1);
  }

  /** The nearest place after (or before) `at` where a word begins, not farther than 24 characters. */
  wordEdge(at, step) {
    for (let place = at, left = 24; place > 0 && place < this.length && left; place += step, left -= 1) {
      if (/\s/.test(this.slice(place - 1, place))) return place;
    }
    return Math.min(Math.max(at, 0), this.length);
  }
}

/** The text of a hit. */
export const textOf = (hit) => new Text(hit.text, frontMatter(hit));

const MARKDOWN = /\.(?:md|markdown|html?|docx)(?:\.(?:gz|xz|bz2|zst))*$/i;
const FRONT_LINES = 200;

/** The length of a Markdown text's front matter, whose values are fields; 0 if there is nothing else. See coil/texts/markup.py. */
function frontMatter({ doc_id: id, text }) {
  if (!MARKDOWN.test(id) || !text.startsWith("---")) return 0;
  let at = 0;
  for (let line = 0; line <= FRONT_LINES && at < text.length; line += 1) {
    const end = text.indexOf("\n", at) + 1 || text.length;
    const written = text.slice(at, end).trimEnd();
    if (line === 0 && written !== "---") return 0;
    if (line > 0 && (written === "---" || written === "...")) {
      const rest = text.slice(end).search(/\S/); // without blank lines
      return rest < 0 ? 0 : Array.from(text.slice(0, end + rest)).length;
    }
    at = end;
  }
  return 0;
}

/**
 * A text for a card: hard-wrapped prose is reflowed, all other line breaks are kept. A line break is replaced with a
 * space, so that all offsets stay valid.
 */
export function flowing(text) {
  if (!text.includes("\n") || looksLikeCode(text)) return text;
  return text.replace(/(?<=(?:^|\n)[^\s\n][^\n]{49,})\n(?=[\p{L}\p{N}("'“‘`])(?!\d+[.)] )/gu, " ");
}

const looksLikeCode = (text) => /^(?:```|~~~|#!)/m.test(text) || (text.match(/[{};][^\S\n]*$/gm) ?? []).length > 1;

/** A span with the text on both sides of it, cut at words. */
export function snippetOf(text, [start, end], around = 48) {
  const from = Math.min(start, Math.max(text.front, text.wordEdge(Math.max(0, start - around), 1)));
  const to = Math.max(end, text.wordEdge(Math.min(text.length, end + around), -1));
  return {
    before: `${from > text.front ? "… " : ""}${text.slice(from, start)}`,
    token: text.slice(start, end),
    after: `${text.slice(end, to)}${to < text.length ? " …" : ""}`,
  };
}

/** A mention with the text around it, preceded by where it is if it is not in the text itself: front matter, path, title or heading. */
export function mentionSnippet(text, mention, around) {
  const span = mention.document_span ?? mention.span;
  const where = mention.where ?? "text";
  if (span[0] < span[1] && span[1] <= text.front) return { before: "front matter: ", token: text.slice(...span), after: "" };
  if (where === "text") return snippetOf(text, span, around);
  if (span[0] === span[1]) return { before: `${where}: `, token: mention.document_token ?? mention.token, after: "" };
  const found = snippetOf(text, span, around);
  return { ...found, before: `${where}: ${found.before}` };
}

/**
 * The places in a hit's text where a query word occurs, each with its mentions, strongest first. `adds` is the
 * contribution of a word, given only at its best mention; `weight` determines the shade: the contribution of the word,
 * scaled by how well this mention fits compared with the best one.
 */
export function placesOf(matches, tokens) {
  const places = new Map();
  const add = (span, mention) => {
    if (span[0] === span[1]) return; // in a title or path that is not part of the text
    const key = span.join("-");
    if (!places.has(key)) places.set(key, { span, mentions: [] });
    places.get(key).mentions.push(mention);
  };
  for (const match of matches ?? []) {
    const token = tokens.at(match.query_span);
    if (!token) continue;
    const adds = match.contribution;
    add(match.document_span, { token, match, mention: match, adds, weight: adds, best: true });
    for (const mention of match.runner_ups ?? []) {
      const weight = match.fit > 0 ? (adds * Math.max(0, mention.fit)) / match.fit : 0;
      add(mention.span, { token, match, mention, adds: 0, weight, best: false });
    }
  }
  for (const place of places.values()) {
    place.mentions.sort((a, b) => b.best - a.best || b.weight - a.weight);
  }
  return [...places.values()].sort((a, b) => a.span[0] - b.span[0] || a.span[1] - b.span[1]);
}

/** The parts of a text to show, as spans: around the places that add most, up to the length of an excerpt. */
export function excerpt(text, places, chunk) {
  if (text.length - text.front <= WHOLE) return [[text.front, text.length]];
  const worth = places
    .filter((place) => place.mentions[0].best && place.span[0] >= text.front)
    .sort((a, b) => b.mentions[0].adds - a.mentions[0].adds);
  if (!worth.length) {
    const start = Math.max(text.front, chunk && chunk[0] < text.length ? chunk[0] : 0);
    return [[start, text.wordEdge(start + ROOM, -1)]];
  }
  let windows = [];
  for (const { span } of worth) {
    const start = Math.max(text.front, text.wordEdge(Math.max(0, span[0] - AROUND), 1));
    const end = text.wordEdge(Math.min(text.length, span[1] + AROUND), -1);
    const wider = merge([...windows, [Math.min(start, span[0]), Math.max(end, span[1])]]);
    if (windows.length && size(wider) > ROOM) continue;
    windows = wider;
  }
  const last = windows.at(-1);
  const left = LEAST - size(windows);
  if (left > 0) last[1] = Math.max(last[1], text.wordEdge(Math.min(text.length, last[1] + left), -1));
  return windows;
}

const size = (windows) => windows.reduce((sum, [start, end]) => sum + end - start, 0);

function merge(windows) {
  const merged = [];
  for (const [start, end] of windows.sort((a, b) => a[0] - b[0])) {
    const last = merged.at(-1);
    if (last && start <= last[1] + 12) last[1] = Math.max(last[1], end);
    else merged.push([start, end]);
  }
  return merged;
}
