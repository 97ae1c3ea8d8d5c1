// The sheet that explains a hit: every part of its score, every mention behind it, and why it ranks above the next hit.

import * as api from "./api.js";
import { byId, count, make, number, plural, share, unseen } from "./dom.js";
import { OF_OWN, legend, nameOf, partsOf, scoreBar, trail } from "./hits.js";
import { markedText, ofTexts, rove, unmarked } from "./marks.js";
import { problemCard, waiting } from "./states.js";
import { figuresOf, fitOf, nameOfSystem } from "./systems.js";
import { WHOLE, mentionSnippet, placesOf, textOf } from "./text.js";
import { hueClass } from "./tokens.js";
import { versus } from "./versus.js";

const SENTENCES = 8; // that are listed; the others are summed up

let asked = null;

/**
 * Explain the score of a document. A hit already has its words, so only its sentences are requested; a document that is
 * not a hit (from a shared link) is requested completely. `view` has the hits of one system. With `jump`, the sheet
 * opens at the best match in the text.
 */
export async function showExplanation(state, view, close, go, jump = false) {
  const sheet = byId("explanation");
  asked?.abort();
  asked = new AbortController();
  const { signal } = asked;
  const { hits } = view.answer;
  const at = hits.findIndex((hit) => hit.doc_id === state.doc);
  const fill = (hit, body) => {
    const top = head(hit, view, close, go, at);
    const held = sheet.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
    sheet.replaceChildren(top, body);
    const same = held && top.querySelector(`[aria-label="${held}"]:not(:disabled)`);
    if (sheet.open) (same || top.querySelector("h2")).focus();
  };
  // Compared with the next hit; the last one with the previous hit, and a document that is not a hit with the last one.
  const folded = hits.some((hit) => hit.duplicates?.includes(state.doc)); // it has the same score as its original
  const rival = folded ? null : ((at >= 0 ? (hits[at + 1] ?? hits[at - 1]) : hits.at(-1)) ?? null);
  const opened = !sheet.open;
  const unknown = { doc_id: state.doc };
  if (at >= 0) fill(hits[at], content(hits[at], hits[at], rival, view));
  else fill(unknown, waiting("Loading the explanation"));
  if (opened) sheet.showModal();
  sheet.querySelector(".sheet-body")?.scrollTo(0, 0);
  if (jump) goToBest(sheet);
  try {
    if (at >= 0) {
      if (hits[at].sentence === null) return;
      const told = await api.explain(state, view.by, state.doc, null, signal);
      const there = jump && sheet.querySelector(".whole")?.contains(document.activeElement);
      showSentences(sheet, told, hits[at], view);
      if (there) goToBest(sheet); // the sentences were inserted above it
      return;
    }
    const [told, read] = await Promise.all([
      api.explain(state, view.by, state.doc, rival?.doc_id ?? null, signal),
      api.readDocument(state.index, state.doc, signal),
    ]);
    const mine = told.first ?? told;
    const hit = { ...read, chunk: mine.chunk, context: mine.context, rank: null };
    fill(hit, content(mine, hit, told.second ? { ...rival, ...told.second } : null, view));
    showSentences(sheet, mine, hit, view);
  } catch (error) {
    if (error.name === "AbortError") return;
    const again = () => showExplanation(state, view, close, go);
    if (at >= 0) sheet.querySelector(".sentences")?.replaceChildren(problemCard(error, again));
    else fill(unknown, problemCard(error, again));
  }
}

/** Close the sheet and cancel its requests. */
export function hideExplanation() {
  asked?.abort();
  const sheet = byId("explanation");
  if (sheet.open) sheet.close();
}

function head(hit, view, close, go, at) {
  const { hits } = view.answer;
  const step = (to, label, sign) =>
    make(
      "button",
      {
        type: "button",
        class: "quiet icon",
        "aria-label": label,
        title: label,
        disabled: !hits[to] || at < 0,
        on: { click: () => go(hits[to].doc_id) },
      },
      sign,
    );
  const system = nameOfSystem(view.by);
  return make(
    "header",
    { class: "sheet-head" },
    make(
      "div",
      {},
      make(
        "p",
        { class: "over" },
        at >= 0 ? placeOf(at + 1, system, view.sorted) : notAmong(hit.doc_id, hits, system),
      ),
      make("h2", { id: "explanation-title", tabindex: -1, autofocus: true }, nameOf(hit)),
      trail(hit),
    ),
    make(
      "div",
      { class: "sheet-tools" },
      step(at - 1, "Previous hit", "↑"),
      step(at + 1, "Next hit", "↓"),
      make("button", { type: "button", class: "quiet icon", "aria-label": "Close", on: { click: close } }, "✕"),
    ),
  );
}

const placeOf = (number, system, sorted) =>
  sorted ? `Hit number ${number}. Why does it have this score with ${system}?` : `Why does ${system} rank this number ${number}?`;

/** Describe a document that is not a hit: the duplicate of one, or another document. */
function notAmong(id, hits, system) {
  const original = hits.find((hit) => hit.duplicates?.includes(id));
  return original ? `A duplicate of hit number ${original.rank}` : `Not among the hits of ${system}. Why?`;
}

/** `mine` and `rival` have the parts of two scores; `hit` has what is known about the document. */
function content(mine, hit, rival, view) {
  const parts = partsOf(mine, view.tokens);
  const { own } = view;
  const ofOwn = own ? Math.max(0, mine.score / own) : null;
  return make(
    "div",
    { class: "sheet-body", tabindex: 0 },
    make(
      "p",
      { class: "verdict" },
      own && make("strong", {}, share(ofOwn)),
      own && ` ${OF_OWN}. `,
      make("span", { class: "raw" }, `${number(mine.score)}${own ? ` of ${number(own)}` : ""}`),
    ),
    scoreBar(parts, own || Math.max(mine.score, 1e-9), ofOwn),
    legend(parts),
    mentionsTable(mine, hit, view),
    textOf(hit).length > WHOLE && jumpButton(),
    leftOver(mine),
    typeof mine.sentence === "number" && make("section", { class: "sentences", "aria-live": "polite" }),
    rival && versus(mine, rival, hit, view),
    wholeText(hit, mine, view),
  );
}

const jumpButton = () =>
  make(
    "button",
    { type: "button", class: "plain jump", on: { click: (event) => goToBest(event.target.closest("dialog")) } },
    "Go to the best match in the text",
  );

/** Go to the word in the text that adds most; without words, to the sentence that does, or to the scored chunk. */
function goToBest(sheet) {
  const strongest = (which, value) => [...sheet.querySelectorAll(`.whole ${which}`)].sort((a, b) => value(b) - value(a))[0];
  const target =
    strongest(".mark.best", (mark) => Number(mark.dataset.adds.replace("−", "-"))) ??
    strongest(".spoken", (sentence) => Number(sentence.style.getPropertyValue("--strength"))) ??
    sheet.querySelector(".whole .begin");
  if (!target) return;
  const folded = target.closest("details");
  if (folded) folded.open = true;
  if (!target.hasAttribute("tabindex")) target.tabIndex = -1;
  target.focus({ preventScroll: true });
  // Not scrollIntoView, which would scroll the sheet as well, with its head.
  const body = sheet.querySelector(".sheet-body");
  const [place, room] = [target.getBoundingClientRect(), body.getBoundingClientRect()];
  body.scrollTop += place.top - room.top - Math.max(0, (room.height - Math.min(place.height, room.height)) / 2);
}

/** The match of each word, with the numbers behind its contribution; columns without information are omitted. */
function mentionsTable(mine, hit, view) {
  const whole = typeof mine.sentence === "number";
  if (!mine.matches.length && !whole) {
    return make("p", { class: "aside how" }, "The document contains no word of the query.");
  }
  const text = textOf(hit);
  const figures = figuresOf(mine.matches, view.by);
  const gain = partsOf(mine, view.tokens).reduce((sum, part) => sum + Math.max(0, part.value), 0) || 1;
  const names = [
    ...(mine.matches.length ? ["Word", "Best mention"] : ["Part", "What it is"]),
    ...(figures.rarity ? ["Texts with it", "Here"] : []),
    ...(figures.fit ? [figures.fit === "fit" ? "Fit" : "Similarity"] : []),
    "Adds",
  ];
  const rows = mine.matches.flatMap((match) => {
    const token = view.tokens.at(match.query_span);
    return [
      row(match, token, snippet(mentionSnippet(text, match), token), figures, gain, view),
      ...(match.runner_ups.length ? [runnerUps(match, token, text, figures, names.length)] : []),
    ];
  });
  if (whole) rows.push(wholeRow(mine.sentence, names.length, gain));
  return make(
    "section",
    {},
    make("h3", {}, "What adds to the score"),
    make(
      "table",
      { class: "mentions" },
      make("thead", {}, make("tr", {}, names.map((name, at) => make("th", { scope: "col", class: at > 1 && "figure" }, name)))),
      make("tbody", {}, rows),
    ),
    figures.rarity &&
      make(
        "p",
        { class: "aside how" },
        `A word adds more the rarer it is and the more often it occurs here${figures.fit ? ", and the better its context fits: below 1 it counts less, above 1 more" : ""}.`,
      ),
  );
}

/** The contribution of the texts as a whole, which has none of the numbers of words. */
const wholeRow = (value, columns, gain) =>
  make(
    "tr",
    { class: "sentence" },
    make("th", { scope: "row" }, make("span", { class: "dot", "aria-hidden": "true" }), "sentence"),
    make("td", { class: "context", colspan: columns - 2 }, make("span", { class: "aside" }, "the similarity of both texts as a whole")),
    addsCell(value, false, gain),
  );

const addsCell = (value, floored, gain) =>
  make(
    "td",
    { class: "figure", "data-label": "adds" },
    make("b", {}, number(value)),
    floored && make("span", { class: "floored", title: "A word adds at least 0" }, "floored at 0"),
    make("span", { class: "mini", "aria-hidden": "true", vars: { width: `${((100 * Math.max(0, value)) / gain).toFixed(1)}%` } }),
  );

function row(match, token, words, figures, gain, view) {
  const figure = (label, value) => make("td", { class: "figure", "data-label": label }, value);
  return make(
    "tr",
    { class: hueClass(token) },
    make("th", { scope: "row" }, make("span", { class: "dot", "aria-hidden": "true" }), match.query_token),
    make("td", { class: "context" }, words),
    figures.rarity && figure("in", [make("span", { title: `Weight ${number(match.rarity)}` }, ofTexts(match, view.rows).replace(" texts", ""), unseen(" texts"))]),
    figures.rarity && figure("here", `${count(match.count)}×`),
    figures.fit && figure(figures.fit, number(fitOf(match, figures.fit))),
    addsCell(match.contribution, match.floored, gain),
  );
}

function runnerUps(match, token, text, figures, columns) {
  const items = match.runner_ups.map((mention) =>
    make(
      "li",
      {},
      make("span", { class: "figure" }, figures.fit ? number(fitOf(mention, figures.fit)) : "·"),
      snippet(mentionSnippet(text, mention), token, true),
    ),
  );
  return make(
    "tr",
    { class: `runners ${hueClass(token)}` },
    make(
      "td",
      { colspan: columns },
      make(
        "details",
        { open: match.runner_ups.length <= 4 },
        make("summary", {}, plural(match.runner_ups.length, "other mention"), figures.fit ? ` that ${match.runner_ups.length === 1 ? "fits" : "fit"} less well` : ""),
        make("ol", {}, items),
      ),
    ),
  );
}

/** The contributions of the sentences, as a list and as shades in the text. */
function showSentences(sheet, told, hit, view) {
  const place = sheet.querySelector(".sentences");
  const parts = told.sentence_parts ?? [];
  const spoken = parts.filter((part) => part.span).sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution));
  if (spoken.length < 2) return void place?.remove(); // one sentence is all of the text
  const listed = spoken.slice(0, SENTENCES);
  const left = [...spoken.slice(SENTENCES), ...parts.filter((part) => !part.span)];
  const most = Math.max(...spoken.map((part) => part.contribution), 1e-9);
  const line = (words, value, pale) =>
    make(
      "li",
      { class: "sentence" },
      make(
        "span",
        { class: "figure" },
        make("b", {}, number(value)),
        make("span", {
          class: "mini",
          "aria-hidden": "true",
          vars: { width: `${Math.min(100, (100 * Math.max(0, value)) / most).toFixed(1)}%` },
        }),
      ),
      make("span", { class: pale && "aside" }, words),
    );
  const rest = [
    spoken.length > SENTENCES && plural(spoken.length - SENTENCES, "more sentence"),
    ...parts.filter((part) => !part.span).map((part) => (part.text === "start and end" ? "start and end markers" : part.text)),
  ].filter(Boolean);
  place.replaceChildren(
    make("h3", {}, "Which sentences contribute"),
    make(
      "ol",
      { class: "sentence-list" },
      listed.map((part) => line(sentenceText(part, textOf(hit)), part.contribution)),
      left.length > 0 && line(rest.join(", "), left.reduce((sum, part) => sum + part.contribution, 0), true),
    ),
    make("p", { class: "aside how" }, `Total: ${number(told.sentence)}, the contribution of the text as a whole. In the text below, sentences that add more are darker.`),
  );
  sheet.querySelector(".whole-text")?.replaceWith(wholeText(hit, told, view, spoken));
  return undefined;
}

/** A sentence without the front matter that the first one begins with. */
function sentenceText(part, text) {
  if (part.span[0] >= text.front) return part.text;
  const rest = text.slice(text.front, part.span[1]).trim();
  return `front matter${rest && ` and ${rest}`}`;
}

function snippet(context, token, pale = false) {
  return make(
    "span",
    { class: "snippet" },
    context.before,
    make("span", { class: `found ${hueClass(token)}${pale ? " pale" : ""}` }, context.token),
    context.after,
  );
}

function leftOver(mine) {
  const lines = [
    ["Not in this document", mine.unmatched],
    ["Not looked up (no list)", mine.without_list],
  ].filter(([, tokens]) => tokens.length);
  if (!lines.length) return null;
  return make(
    "dl",
    { class: "left-over" },
    lines.flatMap(([label, tokens]) => [
      make("dt", {}, label),
      make("dd", {}, tokens.map((token) => make("span", { class: "chip silent" }, token.text))),
    ]),
  );
}

/** The full text; `sentences` are shaded by their contribution. */
function wholeText(hit, mine, view, sentences = []) {
  const text = textOf(hit);
  const places = placesOf(mine.matches, view.tokens);
  const [first, end] = hit.chunk && hit.chunk[1] > 0 ? hit.chunk : [0, text.length];
  const start = Math.max(first, text.front);
  const shown = { ...view, choose: null, gaps: false };
  const most = Math.max(...sentences.map((part) => part.contribution), 1e-9);
  const nodes = [];
  let at = start;
  for (const { span: whole, contribution } of [...sentences].sort((a, b) => a.span[0] - b.span[0])) {
    const span = [Math.max(whole[0], text.front), whole[1]];
    if (span[0] < at || span[1] > end || span[0] >= span[1]) continue;
    nodes.push(...markedText(text, places, [at, span[0]], shown));
    nodes.push(
      make(
        "span",
        {
          class: "spoken",
          title: `This sentence adds ${number(contribution)}`,
          vars: { strength: Math.max(0, contribution / most).toFixed(3) },
        },
        markedText(text, places, span, shown),
      ),
    );
    [, at] = span;
  }
  nodes.push(...markedText(text, places, [at, end], shown));
  const paragraph = make(
    "p",
    { class: "text whole" },
    start > text.front && make("span", { class: "outside" }, unmarked(text, text.front, start)),
    make("span", { class: "begin" }),
    nodes,
    end < text.length && make("span", { class: "outside" }, unmarked(text, end, text.length)),
  );
  rove(paragraph);
  return make("section", { class: "whole-text" }, make("h3", {}, "Full text"), text.front > 0 && frontMatter(text, places, shown), paragraph);
}

/** The front matter, folded: its values are fields. Its words may match, too. */
function frontMatter(text, places, shown) {
  const paragraph = make("p", { class: "text whole" }, markedText(text, places, [0, text.front], shown));
  rove(paragraph);
  return make("details", { class: "front" }, make("summary", {}, "Front matter"), paragraph);
}
