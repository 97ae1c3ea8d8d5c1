// The page: a state, kept in the URL; the answers of the server; and how they are shown.

import { acrossHits } from "./across.js";
import * as api from "./api.js";
import { sideBySide } from "./compare.js";
import { fields, fillControls, fillSorts, fillSystems, listenToControls, openFilter } from "./controls.js";
import { byId, make, milliseconds, plural } from "./dom.js";
import { hideExplanation, showExplanation } from "./explanation.js";
import { asCsv, asJson, copyLink, download, fileName } from "./export.js";
import { showFacets } from "./facets.js";
import { costStrip, showAbout } from "./facts.js";
import { narrower } from "./filters.js";
import { hitCard } from "./hits.js";
import { watchKeys } from "./keys.js";
import { listenToTheme } from "./light.js";
import { watchMarks } from "./marks.js";
import { hideMeant, showMeant } from "./meant.js";
import { fetchMore, offerMore, toldMore } from "./more.js";
import { isAboutFilter, isAboutQuery, isAboutSort, problemInFilter, problemInQuery } from "./problems.js";
import { addressOf, readState, sameSearch, searchOf } from "./state.js";
import { emptyIndex, findExamples, nothingFound, problemCard, waiting, welcome } from "./states.js";
import { readsWords } from "./systems.js";
import { Tokens, showTokens } from "./tokens.js";

const TYPING_MS = 160; // to wait for the next letter
const SETTLED_MS = 2500; // without a letter, until the query becomes an entry of the history

let state = readState(location.search);
let shown = null; // the last answer: { state, facts, views }, one view per system
let drawn = { shown: null, token: null }; // what is displayed
let jump = false; // whether the explanation opens at the best match in the text
let running = null; // the AbortController of the running search
let typing = 0; // the timer that runs while someone types, otherwise 0
let settling = 0;
let drafting = false; // letters of one query share one entry in the history
let indexes = [];
const factsOf = new Map();
const examplesOf = new Map();

const results = byId("results");

// ---- the state

/** Change the state: update the URL and the page, and search if the search has changed. */
function change(changes, { replace = false, overlay = false } = {}) {
  const before = state;
  state = { ...state, ...changes };
  if (state.beside === state.by) state.beside = null;
  if (!sameSearch(before, state)) state = { ...state, token: changes.token ?? null, doc: changes.doc ?? null };
  if (state.doc === null || state.docBy === state.by) state.docBy = null;
  if (JSON.stringify(before) === JSON.stringify(state)) return;
  const how = replace ? "replaceState" : "pushState";
  history[how]({ overlay: overlay || (replace && history.state?.overlay) }, "", addressOf(state));
  follow(before);
}

/** Update the page after a change of the state. */
function follow(before) {
  fill();
  if (state.doc === null) hideExplanation();
  if (!sameSearch(before, state)) return void search();
  show();
  return undefined;
}

/** Show the state in the controls; a query that is being typed is left alone. */
async function fill() {
  fillControls(state, Boolean(typing) || (drafting && document.activeElement === fields.q));
  const { index } = state;
  const facts = index ? await knowIndex(index).catch(() => null) : null;
  if (facts && state.index === index) fillSystems(state, facts);
}

const draft = (changes) => {
  change(changes, { replace: drafting });
  drafting = true;
  clearTimeout(settling);
  settling = setTimeout(settle, SETTLED_MS);
};
const stopTyping = () => {
  clearTimeout(typing);
  typing = 0;
};
const settle = () => {
  drafting = false;
  clearTimeout(settling);
  drawMeant();
};

// ---- searching

async function search() {
  if (!indexes.length) return; // the page is still loading; `start` will search
  running?.abort();
  shown?.more?.abort();
  const mine = new AbortController();
  running = mine;
  const asked = state;
  if (!asked.q.trim()) return void showWelcome(mine);
  busy(true);
  if (!shown) results.replaceChildren(waiting("Searching"));
  try {
    const [answer, beside, facts] = await Promise.all([
      api.search(asked, asked.by, mine.signal),
      asked.beside ? api.search(asked, asked.beside, mine.signal) : null,
      knowIndex(asked.index).catch(() => null),
    ]);
    if (running !== mine) return;
    const answers = beside ? [answer, beside] : [answer];
    const tokens = new Tokens(answers); // shared, so that a word has one colour on both sides
    shown = { state: asked, facts, views: answers.map((one) => viewOf(one, tokens, facts)) };
    busy(false);
    problemInFilter(null);
    problemInQuery(null);
    say(answer);
    show();
  } catch (error) {
    if (running !== mine || error.name === "AbortError") return;
    busy(false);
    if (isAboutQuery(error, asked)) return void showQueryProblem(error);
    shown = null;
    hideExplanation();
    showProblem(error, asked);
  }
}

/** What the hits of a system share: the query words, the strongest match, the score of a full bar. */
function viewOf(answer, tokens, facts) {
  const matches = answer.hits.flatMap((hit) => hit.matches ?? []);
  const own = answer.own_score > 0 ? answer.own_score : null;
  return {
    answer,
    by: answer.by,
    rows: facts?.rows ?? null,
    sorted: Boolean(state.sort),
    tokens,
    offset: answer.hits.length, // where the next page begins
    lastPage: answer.hits.length, // how many hits the last page had
    strongest: Math.max(0, ...matches.map((match) => match.contribution)),
    own,
    whole: own ?? Math.max(1e-9, ...answer.hits.map((hit) => hit.score)),
    choose: (token) => change({ ...ofHits(), token, doc: null }),
    open: (doc, atBest = false) => {
      jump = atBest;
      change({ ...ofHits(), doc, docBy: answer.by }, { overlay: true });
    },
    narrow: (written) => {
      // A search that is running may have a filter that its hits will show; an invalid query has none.
      const kept = isBusy() ? {} : ofHits();
      change({ ...kept, filter: narrower({ ...state, ...kept }.filter, written) });
    },
  };
}

/** The search that the displayed hits belong to. It may differ from the search box: an invalid query has no hits. */
function ofHits() {
  if (!shown || sameSearch(shown.state, state)) return {};
  return searchOf(shown.state);
}

/** Load the next hits, and move the focus to the first of them. */
async function more() {
  const mine = shown;
  if (!mine || mine.more) return;
  const before = mine.views.map((view) => view.answer.hits.length);
  try {
    const added = await fetchMore(mine);
    if (shown !== mine || state.token !== null) return;
    drawMore(before);
    byId("status").textContent = toldMore(added, mine);
    const lists = [...results.querySelectorAll(".hits")];
    const [first] = lists.flatMap((list, at) => [...list.children].slice(before[at], before[at] + 1));
    (first ?? [...results.querySelectorAll(".hit")].at(-1))?.querySelector(".title").focus({ preventScroll: true });
  } catch (error) {
    if (error.name === "AbortError" || shown !== mine) return;
    offerMore(mine, true);
    byId("more-problem").textContent = `${error.detail ?? error.message} ${error.remedy ?? ""}`;
    byId("more-problem").hidden = false;
  }
}

function say(answer) {
  const cost = answer.stats?.total_ms === undefined ? "" : ` in ${milliseconds(answer.stats.total_ms)}`;
  byId("status").textContent = `${plural(answer.hits.length, "hit")}${cost}`;
}

function busy(is) {
  document.documentElement.classList.toggle("busy", is);
  results.setAttribute("aria-busy", String(is));
}

const isBusy = () => results.getAttribute("aria-busy") === "true";

async function knowIndex(name) {
  if (!factsOf.has(name)) {
    const asked = api.describeIndex(name);
    factsOf.set(name, asked);
    asked.catch(() => factsOf.delete(name));
  }
  return factsOf.get(name);
}

// ---- showing

function show() {
  if (!shown || !sameSearch(shown.state, state)) return;
  if (drawn.shown !== shown || drawn.token !== state.token) draw();
  const view = shown.views.find(({ by }) => by === state.docBy) ?? shown.views[0];
  const go = (doc) => change({ doc }, { replace: true });
  if (state.doc !== null) showExplanation(state, view, closeSheet, go, jump);
  else hideExplanation();
  jump = false;
}

/** Sorting by a field ignores how well a hit matches, which looks like a mistake unless it is said. */
const sortNote = (views) => {
  if (!views[0].sorted) return [];
  const field = state.sort.replace(/^-/, "");
  const best = views.map((view) => view.answer.sorted_best).find(Boolean);
  const said = best
    ? `Sorted only the best ${best.toLocaleString("en")} hits by ${field}; more documents match. To narrow them down, add a filter, or put + before a word that must be in the text.`
    : `Sorted by ${field}, not by score. To keep only documents with a word, put + before it.`;
  return [make("p", { class: "ordered" }, said)];
};

/** Redraw the query, the cost and the results. Not for every change, so that the focus stays at its hit. */
function draw() {
  const { facts, views } = shown;
  const [view, beside] = views;
  const { answer } = view;
  const token = state.token === null ? null : view.tokens.all[state.token];
  const [chips, strip] = [byId("query"), byId("strip")];
  const atResults = results.contains(document.activeElement);
  const atDoc = atResults ? document.activeElement.closest(".hit")?.dataset.doc : undefined;
  const atChip = chips.contains(document.activeElement) ? document.activeElement.dataset.token : null;
  chips.hidden = !view.tokens.all.length;
  chips.replaceChildren(showTokens(view.tokens, state.token, view.choose));
  strip.hidden = !answer.stats;
  if (answer.stats) strip.replaceChildren(...costStrip(answer.stats, answer.hits.length, beside ? null : view.own, facts));
  document.body.classList.toggle("wide", Boolean(beside) && !token?.compared);
  const wordy = views.find(({ by }) => readsWords(by)) ?? view;
  if (facts?.documents === 0) results.replaceChildren(emptyIndex(facts));
  else if (!views.some((one) => one.answer.hits.length)) results.replaceChildren(nothingFound(state, answer, change));
  else if (token?.compared) results.replaceChildren(acrossHits(token, wordy, () => change({ token: null })));
  else if (beside) results.replaceChildren(...sortNote(views), sideBySide(view, beside));
  else results.replaceChildren(...sortNote(views), make("ol", { class: "hits" }, answer.hits.map((hit) => hitCard(hit, view))));
  showFacets(token?.compared || beside ? [] : answer.hits, view.narrow);
  fillSorts(state, views.flatMap((one) => one.answer.hits));
  byId("after").hidden = Boolean(token?.compared) || !views.some((one) => one.answer.hits.length);
  offerMore(shown, !token?.compared);
  // Keyboard users continue near the place where they were.
  const chip = atChip ?? (atResults && drawn.shown === shown ? drawn.token : null);
  if (token && atResults) byId("across-back")?.focus();
  else if (chip !== null) chips.querySelector(`[data-token="${chip}"]`)?.focus();
  else if (atDoc !== undefined) [...results.querySelectorAll(".hit .title")].find((title) => title.dataset.doc === atDoc)?.focus();
  drawn = { shown, token: state.token };
  drawMeant();
}

/** Add the hits after the first `before`; with one system, the earlier cards stay as they are. */
function drawMore([before]) {
  const [view, beside] = shown.views;
  if (beside) return void draw();
  results.querySelector(".hits").append(...view.answer.hits.slice(before).map((hit) => hitCard(hit, view)));
  byId("query").replaceChildren(showTokens(view.tokens, state.token, view.choose));
  showFacets(view.answer.hits, view.narrow);
  offerMore(shown, true);
  const cost = byId("strip").querySelector("summary"); // that of the first page
  if (cost && !cost.textContent.startsWith("First")) cost.textContent = `First ${cost.textContent}`;
  return undefined;
}

function drawMeant() {
  if (!drawn.shown || !sameSearch(drawn.shown.state, state)) return;
  const unfinished = drafting && document.activeElement === fields.q;
  showMeant(drawn.shown.views[0].answer, unfinished, (q) => {
    settle();
    fields.q.focus();
    change({ q });
  });
}

function closeSheet() {
  // Opening the sheet added an entry to the history; closing it goes back.
  if (history.state?.overlay) history.back();
  else change({ doc: null }, { replace: true });
}

function clearAround() {
  drawn = { shown: null, token: null };
  byId("query").hidden = true;
  hideMeant();
  byId("after").hidden = true;
  byId("facets").hidden = true;
  byId("strip").hidden = true;
  document.body.classList.remove("wide");
}

function showProblem(problem, asked) {
  clearAround();
  problemInFilter(isAboutFilter(problem, asked) ? problem : null);
  problemInQuery(null);
  byId("status").textContent = "";
  const again = () => (indexes.length ? search() : start());
  results.replaceChildren(isAboutSort(problem, asked) ? problemCard(problem, () => change({ sort: "" }), "Sort by score") : problemCard(problem, again));
}

/** Only next to the search box: someone may still be typing, so the hits of the previous query stay. */
function showQueryProblem(problem) {
  problemInFilter(null);
  problemInQuery(problem, shown?.state.q.trim());
  byId("status").textContent = "";
  hideMeant();
  if (shown) return;
  clearAround();
  hideExplanation();
  results.replaceChildren();
}

async function showWelcome(mine) {
  shown = null;
  busy(false);
  clearAround();
  hideExplanation();
  problemInFilter(null);
  problemInQuery(null);
  byId("status").textContent = "";
  const ask = (q) => {
    settle();
    change({ q });
    fields.q.focus();
  };
  const index = state.index;
  const known = examplesOf.get(index);
  if (known?.length) return void results.replaceChildren(welcome(known, ask));
  results.replaceChildren(waiting("Opening the index"));
  try {
    const facts = await knowIndex(index);
    const examples = facts.documents ? await findExamples(index, facts) : [];
    examplesOf.set(index, examples);
    if (running !== mine) return;
    results.replaceChildren(facts.documents ? welcome(examples, ask) : emptyIndex(facts));
  } catch (error) {
    if (running === mine) showProblem(error, state);
  }
}

// ---- events

function listen() {
  fields.q.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      typing = 0;
      draft({ q: fields.q.value });
    }, TYPING_MS);
  });
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    stopTyping();
    const changes = { q: fields.q.value, filter: fields.filter.value.trim() };
    const same = Object.entries(changes).every(([name, value]) => state[name] === value);
    if (same && !running?.signal.aborted && !shown) search();
    else change(changes, { replace: drafting });
    settle();
  });
  fields.q.addEventListener("blur", settle);
  byId("more").addEventListener("click", more);
  byId("copy-link").addEventListener("click", copyLink);
  byId("export-json").addEventListener("click", () => download(asJson(shown), fileName(shown, "json"), "application/json"));
  byId("export-csv").addEventListener("click", () => download(asCsv(shown), fileName(shown, "csv"), "text/csv"));
  byId("home").addEventListener("click", (event) => {
    event.preventDefault();
    fields.q.value = "";
    change({ q: "", filter: "", sort: "" });
    openFilter(false);
    fields.q.focus();
  });
  byId("about-open").addEventListener("click", async () => {
    try {
      const { index } = state;
      showAbout(index, await knowIndex(index), () => byId("about").close(), () => {
        factsOf.delete(index); // it has changed
        examplesOf.delete(index);
        if (state.index === index) search();
      });
    } catch (error) {
      showProblem(error, state);
    }
  });
  byId("explanation").addEventListener("cancel", (event) => {
    event.preventDefault();
    closeSheet();
  });
  for (const sheet of document.querySelectorAll("dialog")) {
    // A click outside the sheet hits the dialog itself.
    sheet.addEventListener("click", (event) => {
      if (event.target === sheet) sheet.dispatchEvent(new Event("cancel", { cancelable: true })) && sheet.close();
    });
  }
  addEventListener("popstate", () => {
    const before = state;
    settle();
    stopTyping();
    state = readState(location.search);
    if (!state.index) state.index = before.index;
    follow(before);
  });
  watchKeys(() => {
    if (state.token === null) return false;
    change({ token: null });
    return true;
  });
  listenToTheme();
}

// ---- start

async function start() {
  results.replaceChildren(waiting("Opening the index"));
  try {
    ({ indexes } = await api.listIndexes());
  } catch (error) {
    return void showProblem(error, state);
  }
  const chosen = indexes.find(({ default: first }) => first) ?? indexes[0];
  if (!state.index) state.index = chosen?.name ?? "";
  byId("index").replaceChildren(...indexes.map(({ name }) => make("option", { value: name }, name)));
  const known = indexes.some(({ name }) => name === state.index);
  byId("chooser").hidden = indexes.length < 2 && known;
  byId("only-index").textContent = indexes.length === 1 && known ? indexes[0].name : "";
  fill();
  return search();
}

watchMarks();
listenToControls(change);
listen();
start();
