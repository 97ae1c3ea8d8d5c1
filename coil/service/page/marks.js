// A document's text with the matched words shaded by their contribution, and the tooltip with the figures.

import { byId, count, make, number } from "./dom.js";
import { linkTo } from "./links.js";
import { figuresOf, fitOf } from "./systems.js";
import { hueClass } from "./tokens.js";

/** Shades run from 0 to 1; squared, so that a word in two contexts has visibly different shades. */
const strength = (value, strongest) => (strongest > 0 ? Math.min(1, Math.max(0, value / strongest)) ** 2 : 0);

/** A span of text as nodes, with the matches marked. `shown` is the span to show. */
export function markedText(text, places, shown, { strongest, choose, by, rows, live = true, gaps = true }) {
  const nodes = [];
  let at = shown[0];
  for (const place of places) {
    const [start, end] = place.span;
    if (start < at || end > shown[1]) continue;
    if (start > at) nodes.push(...unmarked(text, at, start, gaps));
    const word = text.slice(start, end);
    // A word piece: a figure after it would split the word.
    const piece = /[\p{L}\p{N}]{2}/u.test(text.around(start)) || /[\p{L}\p{N}]{2}/u.test(text.around(end));
    nodes.push(mark(word, place.mentions, { strongest, choose, live, piece, by, rows }));
    at = end;
  }
  if (at < shown[1]) nodes.push(...unmarked(text, at, shown[1], gaps));
  return nodes;
}

/** Text between marks, with its links. A mark may be in the middle of a URL: both sides of it are the link. */
export function unmarked(text, from, to, gaps = false) {
  const nodes = [];
  let at = from;
  for (const { span, href } of text.links) {
    const [start, end] = [Math.max(span[0], at), Math.min(span[1], to)];
    if (start >= end) continue;
    const again = start > span[0] && { tabindex: -1 };
    nodes.push(...flow(text.slice(at, start), gaps), linkTo(href, text.slice(start, end), again || {}));
    at = end;
  }
  nodes.push(...flow(text.slice(at, to), gaps));
  return nodes;
}

/** Blank lines become small gaps if there is little space. */
const flow = (words, gaps) =>
  gaps ? words.split(/\n(?:[^\S\n]*\n)+/).flatMap((part, at) => (at ? [make("span", { class: "gap" }), part] : [part])) : [words];

function mark(word, mentions, { strongest, choose, live, piece, by, rows }) {
  const [first] = mentions;
  const tells = first.best && live;
  const element = make(
    "span",
    {
      class: `mark ${hueClass(first.token)} ${first.best ? "best" : "other"}${piece ? " piece" : ""}`,
      role: tells && "button",
      tabindex: tells && "-1",
      "data-adds": number(first.adds),
      "data-token": first.token.place,
      vars: { strength: strength(first.weight, strongest).toFixed(3) },
    },
    word,
  );
  element.tipLines = () => mentions.map((mention) => tipLine(mention, by, rows));
  if (tells && choose) {
    element.addEventListener("click", () => choose(first.token.place));
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(first.token.place);
    });
  }
  return element;
}

/** One tab stop per text; the arrow keys go from match to match. */
export function rove(container) {
  const stops = () => [...container.querySelectorAll(".mark[role=button]")];
  const [first] = stops();
  if (first) first.tabIndex = 0;
  container.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !event.target.matches?.(".mark[role=button]")) return;
    const all = stops();
    const next = all[all.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    for (const stop of all) stop.tabIndex = stop === next ? 0 : -1;
    next.focus();
  });
}

/** Hovering over or focusing a mark shows its tooltip, anywhere on the page. */
export function watchMarks() {
  const tip = byId("tip");
  const show = (target) => {
    const found = target.closest?.(".mark");
    tip.hidden = true; // the mark it was for may be gone
    if (!found?.tipLines) return;
    // A modal dialog covers the page; its tip has to be inside.
    (found.closest("dialog") ?? document.body).append(tip);
    tip.replaceChildren(...found.tipLines());
    tip.hidden = false;
    found.setAttribute("aria-describedby", "tip");
    put(tip, found.getClientRects()[0]);
  };
  const hide = (target) => {
    target.closest?.(".mark")?.removeAttribute("aria-describedby");
    tip.hidden = true;
  };
  document.addEventListener("pointerover", (event) => show(event.target));
  document.addEventListener("pointerout", (event) => hide(event.target));
  document.addEventListener("focusin", (event) => show(event.target));
  document.addEventListener("focusout", (event) => hide(event.target));
  document.addEventListener("scroll", () => (tip.hidden = true), { passive: true, capture: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
  });
}

function tipLine({ token, match, mention, adds, best }, by, rows) {
  const { fit, rarity } = figuresOf([match], by);
  const fits = fit ? `${fit} ${number(fitOf(mention, fit))}` : "";
  const parts = !best
    ? [fits, fit ? "not the best mention" : "another mention"]
    : [
        match.floored ? "does not fit and adds nothing" : `adds ${number(adds)}`,
        rarity && `in ${ofTexts(match, rows)}`,
        rarity && `${count(match.count)}× here`,
        fits,
      ];
  return make(
    "p",
    { class: hueClass(token) },
    make("span", { class: "dot", "aria-hidden": "true" }),
    make("b", {}, token.text),
    ` ${parts.filter(Boolean).join(", ")}`,
  );
}

/** How rare a word is: `12 of 5,183 texts`. */
export const ofTexts = (match, rows) => `${count(match.rows_with)}${rows ? ` of ${count(rows)}` : ""} texts`;

function put(tip, at) {
  const edge = 8;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(edge, at.left + at.width / 2 - box.width / 2), innerWidth - box.width - edge);
  const above = at.top - box.height - edge;
  tip.style.setProperty("left", `${left}px`);
  tip.style.setProperty("top", `${above > edge ? above : at.bottom + edge}px`);
}
