// What the page shows, as an address: it can be shared, and the back button works.

export const CHOICES_OF_K = [5, 10, 20, 50, 100];
const EMPTY = { index: "", q: "", k: 10, filter: "", tokOnly: false, bm25: false, token: null, doc: null };

/** The state that an address names. */
export function readState(address) {
  const given = new URLSearchParams(address);
  const k = Number.parseInt(given.get("k") ?? "", 10);
  const token = Number.parseInt(given.get("token") ?? "", 10);
  return {
    index: given.get("index") ?? EMPTY.index,
    q: given.get("q") ?? EMPTY.q,
    k: k >= 1 && k <= 1000 ? k : EMPTY.k,
    filter: given.get("filter") ?? EMPTY.filter,
    tokOnly: given.get("tok_only") === "true",
    bm25: given.get("bm25") === "true",
    token: token >= 0 ? token : null,
    doc: given.get("doc"),
  };
}

/** The address of a state; what is as always is left out. */
export function addressOf(state) {
  const given = new URLSearchParams();
  if (state.q) given.set("q", state.q);
  if (state.index) given.set("index", state.index);
  if (state.k !== EMPTY.k) given.set("k", String(state.k));
  if (state.filter) given.set("filter", state.filter);
  if (state.tokOnly) given.set("tok_only", "true");
  if (state.bm25) given.set("bm25", "true");
  if (state.token !== null) given.set("token", String(state.token));
  if (state.doc !== null) given.set("doc", state.doc);
  const written = given.toString();
  return written ? `?${written}` : location.pathname;
}

/** Whether two states ask the server the same. */
export const sameSearch = (a, b) =>
  ["index", "q", "k", "filter", "tokOnly", "bm25"].every((name) => a[name] === b[name]);
