// The state of the page as a URL: it can be shared, and the back button works.

import { isSystem } from "./systems.js";

export const MOST_IN_URL = 60_000; // characters; the server accepts 64 KiB of headers
export const CHOICES_OF_K = [5, 10, 20, 50, 100];
const SEARCHED = ["index", "q", "k", "filter", "by", "beside", "sort", "fold"];
const EMPTY = { index: "", q: "", k: 10, filter: "", by: "coil", beside: null, sort: "", token: null, doc: null, docBy: null };

/** The state in a URL. */
export function readState(address) {
  const given = new URLSearchParams(address);
  const k = Number.parseInt(given.get("k") ?? "", 10);
  const token = Number.parseInt(given.get("token") ?? "", 10);
  const system = (name, otherwise) => (isSystem(given.get(name)) ? given.get(name) : otherwise);
  const by = system("by", EMPTY.by);
  const beside = system("beside", null);
  const docBy = system("doc_by", null);
  return {
    index: given.get("index") ?? EMPTY.index,
    q: given.get("q") ?? EMPTY.q,
    k: k >= 1 && k <= 1000 ? k : EMPTY.k,
    filter: given.get("filter") ?? EMPTY.filter,
    by,
    beside: beside === by ? null : beside,
    sort: given.get("sort") ?? EMPTY.sort,
    fold: given.get("fold") !== "0",
    token: token >= 0 ? token : null,
    doc: given.get("doc"),
    docBy: docBy === by ? null : docBy,
  };
}

/** The URL of a state; default values are omitted, and so is a query or a filter that no request can have. */
export function addressOf(state) {
  const given = new URLSearchParams();
  const fits = (text) => text && new URLSearchParams({ text }).toString().length < MOST_IN_URL;
  if (fits(state.q)) given.set("q", state.q);
  if (state.index) given.set("index", state.index);
  if (state.k !== EMPTY.k) given.set("k", String(state.k));
  if (fits(state.filter)) given.set("filter", state.filter);
  if (state.by !== EMPTY.by) given.set("by", state.by);
  if (state.beside) given.set("beside", state.beside);
  if (state.sort) given.set("sort", state.sort);
  if (!state.fold) given.set("fold", "0");
  if (state.token !== null) given.set("token", String(state.token));
  if (state.doc !== null) given.set("doc", state.doc);
  if (state.doc !== null && state.docBy) given.set("doc_by", state.docBy);
  const written = given.toString();
  return written ? `?${written}` : location.pathname;
}

/** Whether two states send the same search to the server. */
export const sameSearch = (a, b) => SEARCHED.every((name) => a[name] === b[name]);

/** The part of a state that is sent to the server. */
export const searchOf = (state) => Object.fromEntries(SEARCHED.map((name) => [name, state[name]]));
