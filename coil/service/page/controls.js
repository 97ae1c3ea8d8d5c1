// The controls around the search box: they show the state and change it.

import { byId, make } from "./dom.js";
import { isName } from "./filters.js";
import { CHOICES_OF_K } from "./state.js";
import { SYSTEMS, canAnswer } from "./systems.js";

const SORT_FIELDS = 12; // offered for sorting
const SORTED_LENGTH = 80; // characters; fields with longer texts are not offered

export const fields = {
  q: byId("q"),
  k: byId("k"),
  filter: byId("filter"),
  by: byId("by"),
  beside: byId("beside"),
  sort: byId("sort"),
  fold: byId("fold"),
};
const sortable = new Map(); // index → the fields that its hits had so far

/** Show a state; `keepQuery` leaves the search box alone, because someone is typing in it. */
export function fillControls(state, keepQuery) {
  if (!keepQuery) fields.q.value = state.q;
  fields.filter.value = state.filter;
  if (![...fields.k.options].some((option) => option.value === String(state.k))) {
    fields.k.append(make("option", { value: state.k }, String(state.k)));
  }
  fields.k.value = String(state.k);
  fields.fold.checked = state.fold;
  fillSystems(state, null);
  fillSorts(state, []);
  byId("index").value = state.index;
  if (state.filter) openFilter(true);
  byId("filter-open").classList.toggle("active", Boolean(state.filter));
  document.title = state.q.trim() ? `${state.q.trim()} · COIL` : "COIL";
}

/** The systems that the model of the index supports; a system cannot be compared with itself. */
export function fillSystems(state, facts) {
  const option = ({ by, name, what }) => make("option", { value: by, title: what, disabled: !canAnswer(by, facts) }, name);
  fields.by.replaceChildren(...SYSTEMS.map(option));
  const others = SYSTEMS.filter(({ by }) => by !== state.by);
  fields.beside.replaceChildren(make("option", { value: "" }, "nothing"), ...others.map(option));
  fields.by.value = state.by;
  fields.beside.value = state.beside ?? "";
}

/** Sorting by score, or by a field that the hits of this index have; both ways. */
export function fillSorts(state, hits) {
  const known = sortable.get(state.index) ?? new Set();
  sortable.set(state.index, known);
  for (const [name, value] of hits.flatMap((hit) => Object.entries(hit.fields ?? {}))) {
    if (known.size < SORT_FIELDS && isSortable(name, value)) known.add(name);
  }
  const chosen = state.sort.replace(/^-/, "");
  const names = [...known, ...(chosen && !known.has(chosen) ? [chosen] : [])].sort((a, b) => a.localeCompare(b, "en"));
  const both = (name) => [
    make("option", { value: name }, `${name} ↑`),
    make("option", { value: `-${name}` }, `${name} ↓`),
  ];
  fields.sort.replaceChildren(make("option", { value: "" }, "score"), ...names.flatMap(both));
  fields.sort.value = state.sort;
  const ways = { true: "ascending", false: "descending" };
  for (const option of fields.sort.options) {
    if (option.value) option.setAttribute("aria-label", `${option.value.replace(/^-/, "")}, ${ways[!option.value.startsWith("-")]}`);
  }
}

const isSortable = (name, value) =>
  isName(name) &&
  (typeof value === "number" || typeof value === "bigint" || (typeof value === "string" && value.length <= SORTED_LENGTH));

export function openFilter(open) {
  byId("filter-box").hidden = !open;
  byId("filter-open").setAttribute("aria-expanded", String(open));
}

function openHelp(open) {
  byId("help").hidden = !open;
  byId("help-open").setAttribute("aria-expanded", String(open));
}

/** Every control but the search box calls `change` with its part of the state. */
export function listenToControls(change) {
  for (const k of CHOICES_OF_K) fields.k.append(make("option", { value: k }, String(k)));
  fields.filter.addEventListener("change", () => change({ filter: fields.filter.value.trim() }));
  fields.k.addEventListener("change", () => change({ k: Number(fields.k.value) }));
  fields.by.addEventListener("change", () => change({ by: fields.by.value }));
  fields.beside.addEventListener("change", () => change({ beside: fields.beside.value || null }));
  fields.sort.addEventListener("change", () => change({ sort: fields.sort.value }));
  fields.fold.addEventListener("change", () => change({ fold: fields.fold.checked }));
  byId("index").addEventListener("change", (event) => change({ index: event.target.value }));
  byId("help-open").addEventListener("click", () => openHelp(byId("help").hidden));
  byId("filter-open").addEventListener("click", () => {
    openFilter(byId("filter-box").hidden);
    if (!byId("filter-box").hidden) fields.filter.focus();
  });
  byId("filter-clear").addEventListener("click", () => {
    fields.filter.value = "";
    change({ filter: "" });
    openFilter(false);
    byId("filter-open").focus();
  });
}
