// The sheet that answers "why": every part of a score, every mention behind it, and why above the next one.

import * as api from "./api.js";
import { byId, make, number, plural, share, signed, unseen } from "./dom.js";
import { legend, nameOf, partsOf, scoreBar } from "./hits.js";
import { markedText, rove } from "./marks.js";
import { problemCard, waiting } from "./states.js";
import { Text, placesOf, snippetOf } from "./text.js";
import { hueClass } from "./tokens.js";

let asked = null;

/**
 * Show why a document scores what it scores. A hit came with everything; only what is no hit (BM25's, or one from
 * a shared address) is asked for. `view` is that of the hits, with `answer` and `others`, BM25's hits, in it.
 */
export async function showExplanation(state, view, close, go) {
  const sheet = byId("explanation");
  asked?.abort();
  asked = new AbortController();
  const { hits } = view.answer;
  const at = hits.findIndex((hit) => hit.doc_id === state.doc);
  const top = head(state.doc, view, close, go, hits, at);
  const fill = (body) => {
    const held = sheet.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
    sheet.replaceChildren(top, body);
    const same = held && top.querySelector(`[aria-label="${held}"]:not(:disabled)`);
    if (sheet.open) (same || top.querySelector("h2")).focus();
  };
  const opened = !sheet.open;
  if (at >= 0) {
    // Against the next one; the last hit has only one before it.
    const rival = hits[at + 1] ?? hits[at - 1] ?? null;
    fill(content(hits[at], hits[at], rival, rival, view));
  } else {
    fill(waiting("Taking the score apart"));
  }
  if (opened) sheet.showModal();
  sheet.querySelector(".sheet-body")?.scrollTo(0, 0);
  if (at >= 0) return;
  try {
    const rival = hits.at(-1) ?? null;
    const told = await api.explain(state, state.doc, rival?.doc_id ?? null, asked.signal);
    const mine = "first" in told ? told.first : told;
    const text = view.others.find((hit) => hit.doc_id === state.doc) ?? null;
    fill(content(mine, text && { ...text, rank: null }, "first" in told ? rival : null, rival, view));
  } catch (error) {
    if (error.name !== "AbortError") fill(problemCard(error, () => showExplanation(state, view, close, go)));
  }
}

/** Close the sheet, and stop asking. */
export function hideExplanation() {
  asked?.abort();
  const sheet = byId("explanation");
  if (sheet.open) sheet.close();
}

function head(docId, view, close, go, hits, at) {
  const hit = hits[at] ?? view.others.find((other) => other.doc_id === docId) ?? null;
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
  return make(
    "header",
    { class: "sheet-head" },
    make(
      "div",
      {},
      make("p", { class: "over" }, at >= 0 ? `Why is this hit number ${at + 1}?` : "Not among the hits. Why?"),
      make("h2", { id: "explanation-title", tabindex: -1, autofocus: true }, hit ? nameOf(hit) : docId),
    ),
    make(
      "div",
      { class: "sheet-tools" },
      step(at - 1, "The hit before", "↑"),
      step(at + 1, "The next hit", "↓"),
      make("button", { type: "button", class: "quiet icon", "aria-label": "Close", on: { click: close } }, "✕"),
    ),
  );
}

/** `mine` and `other` have the parts of two scores; `hit` and `rival` are what is known of their documents. */
function content(mine, hit, other, rival, view) {
  const parts = partsOf(mine, view.tokens);
  const best = view.best;
  return make(
    "div",
    { class: "sheet-body", tabindex: 0 },
    make(
      "p",
      { class: "verdict" },
      best && make("strong", {}, share(Math.max(0, mine.score / best))),
      best && " of the best possible score. ",
      make("span", { class: "raw" }, `${number(mine.score)}${best ? ` of ${number(best)}` : ""}`),
    ),
    scoreBar(parts, best || Math.max(mine.score, 1e-9)),
    legend(parts),
    mentionsTable(mine, hit, view),
    leftOver(mine),
    other && versus(mine, other, hit, rival, view),
    hit && wholeText(hit, mine, view),
  );
}

function mentionsTable(mine, hit, view) {
  const text = hit && new Text(hit.text);
  const around = (span, context) => (text ? snippetOf(text, span) : context);
  const gain = partsOf(mine, view.tokens).reduce((sum, part) => sum + Math.max(0, part.value), 0) || 1;
  const rows = mine.matches.flatMap((match) => {
    const token = view.tokens.at(match.query_span);
    const floored = match.similarity < 0 && match.contribution === 0;
    return [
      row(token, match.query_token, snippet(around(match.document_span, match.context), token), match.similarity, match.contribution, gain, floored),
      ...(match.runner_ups.length ? [runnerUps(match, token, around)] : []),
    ];
  });
  if (mine.sentence !== null) {
    const words = make("span", { class: "aside" }, "both texts as a whole");
    rows.push(row(null, "sentence", words, mine.sentence, mine.sentence, gain, false));
  }
  return make(
    "section",
    {},
    make("h3", {}, "What each query token found"),
    rows.length
      ? make(
          "table",
          { class: "mentions" },
          make(
            "thead",
            {},
            make(
              "tr",
              {},
              ["Query", "Best mention", "Similarity", "Adds"].map((name, at) =>
                make("th", { scope: "col", class: at > 1 && "figure" }, name),
              ),
            ),
          ),
          make("tbody", {}, rows),
        )
      : make("p", { class: "aside" }, "No query token has a mention in this document."),
  );
}

function row(token, name, words, similarity, adds, gain, floored) {
  return make(
    "tr",
    { class: hueClass(token) },
    make("th", { scope: "row" }, make("span", { class: "dot", "aria-hidden": "true" }), name),
    make("td", { class: "context" }, words),
    make("td", { class: "figure", "data-label": "similarity" }, number(similarity)),
    make(
      "td",
      { class: "figure", "data-label": "adds" },
      make("b", {}, number(adds)),
      floored && make("span", { class: "floored", title: "Similarities below 0 count as 0" }, "floored at 0"),
      make("span", {
        class: "mini",
        "aria-hidden": "true",
        vars: { width: `${((100 * Math.max(0, adds)) / gain).toFixed(1)}%` },
      }),
    ),
  );
}

function runnerUps(match, token, around) {
  const items = match.runner_ups.map((mention) =>
    make(
      "li",
      {},
      make("span", { class: "figure" }, number(mention.similarity)),
      snippet(around(mention.span, mention.context), token, true),
    ),
  );
  return make(
    "tr",
    { class: `runners ${hueClass(token)}` },
    make(
      "td",
      { colspan: 4 },
      make(
        "details",
        { open: match.runner_ups.length <= 4 },
        make("summary", {}, plural(match.runner_ups.length, "other mention"), `, less like “${match.query_token}”`),
        make("ol", {}, items),
      ),
    ),
  );
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
    ["Never compared, they have no list", mine.without_list],
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

/** Part by part against another hit: what decides comes first. */
function versus(mine, other, hit, rival, view) {
  const above = hit?.rank ? hit.rank < rival.rank : false;
  const spans = new Map();
  const put = (told, side) => {
    for (const part of partsOf(told, view.tokens)) {
      const key = part.token ? part.token.place : "sentence";
      if (!spans.has(key)) spans.set(key, { ...part, values: [null, null] });
      spans.get(key).values[side] = part.value;
    }
  };
  put(mine, 0);
  put(other, 1);
  const parts = [...spans.values()]
    .map((part) => ({ ...part, difference: (part.values[0] ?? 0) - (part.values[1] ?? 0) }))
    .sort((a, b) => Math.abs(b.difference) - Math.abs(a.difference));
  const widest = Math.max(...parts.map((part) => Math.abs(part.difference)), 1e-9);
  const cell = (value) => (value === null ? make("span", { class: "aside" }, "–", unseen("no match")) : number(value));
  const line = (part) =>
    make(
      "tr",
      { class: hueClass(part.token) },
      make("th", { scope: "row" }, make("span", { class: "dot", "aria-hidden": "true" }), part.name),
      part.values.map((value) => make("td", { class: "figure" }, cell(value))),
      make(
        "td",
        { class: `figure lead ${part.difference >= 0 ? "for" : "against"}` },
        make("b", {}, signed(part.difference)),
        make("span", {
          class: "lean",
          "aria-hidden": "true",
          vars: { width: `${((50 * Math.abs(part.difference)) / widest).toFixed(1)}%` },
        }),
      ),
    );
  const total = mine.score - other.score;
  return make(
    "section",
    { class: "versus" },
    make("h3", {}, above ? "Why above the next one?" : hit?.rank ? "Why below the one before?" : "Why below the last hit?"),
    make(
      "p",
      {},
      reason(parts, above),
      " ",
      make("span", { class: "aside" }, `Compared with number ${rival.rank}, ${nameOf(rival)}.`),
    ),
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("th", { scope: "col" }, "Part"),
          [hit?.rank ? `Number ${hit.rank}` : "This one", `Number ${rival.rank}`, "Difference"].map((name) =>
            make("th", { scope: "col", class: "figure" }, name),
          ),
        ),
      ),
      make("tbody", {}, parts.map(line)),
      make(
        "tfoot",
        {},
        make(
          "tr",
          {},
          make("th", { scope: "row" }, "Score"),
          [number(mine.score), number(other.score)].map((value) => make("td", { class: "figure" }, value)),
          make("td", { class: "figure lead" }, make("b", {}, signed(total))),
        ),
      ),
    ),
  );
}

function reason(parts, above) {
  const [most] = parts.filter((part) => (above ? part.difference > 0 : part.difference < 0));
  if (!most) return "They score the same; the one that was added first stands first.";
  const what = most.token ? `“${most.name}”` : "The sentence as a whole";
  return `${what} decides most: ${signed(most.difference)}.`;
}

function wholeText(hit, mine, view) {
  const text = new Text(hit.text);
  const places = placesOf(mine.matches, view.tokens);
  const [start, end] = hit.chunk && hit.chunk[1] > 0 ? hit.chunk : [0, text.length];
  const shown = { ...view, choose: null, gaps: false };
  const paragraph = make(
    "p",
    { class: "text whole" },
    start > 0 && make("span", { class: "outside" }, text.slice(0, start)),
    markedText(text, places, [start, end], shown),
    end < text.length && make("span", { class: "outside" }, text.slice(end, text.length)),
  );
  rove(paragraph);
  return make("section", {}, make("h3", {}, "The text"), paragraph);
}
