// Below the hits: the button for more.

import * as api from "./api.js";
import { byId, plural } from "./dom.js";

/** Whether a system may have more hits: its last page was full, and some documents are not displayed yet. */
function mayHaveMore(view, { state, facts }) {
  const seen = view.answer.hits.reduce((sum, hit) => sum + 1 + (hit.duplicates?.length ?? 0), 0);
  return view.lastPage >= state.k && (!facts || seen < facts.documents);
}

/** Show the button if there are more hits; `listed` says whether hits are listed at all. */
export function offerMore(shown, listed) {
  const button = byId("more");
  button.hidden = !listed || !shown.views.some((view) => mayHaveMore(view, shown));
  button.textContent = shown.more ? "Loading…" : `Show ${shown.state.k} more`;
  button.setAttribute("aria-disabled", String(Boolean(shown.more)));
  byId("more-problem").hidden = true;
}

/** Fetch the next hits of every system that may have more, and append them. Returns how many were added. */
export async function fetchMore(shown) {
  shown.more = new AbortController();
  offerMore(shown, true);
  try {
    const views = shown.views.filter((view) => mayHaveMore(view, shown));
    const { state, more } = shown;
    const pages = await Promise.all(views.map((view) => api.search(state, view.by, more.signal, view.offset)));
    return pages.reduce((sum, page, at) => sum + append(views[at], page.hits), 0);
  } finally {
    shown.more = null;
  }
}

/** If the index has changed in the meantime, a document may be sent again; it stays where it is. */
function append(view, hits) {
  const known = new Set(view.answer.hits.map((hit) => hit.doc_id));
  const fresh = hits.filter((hit) => !known.has(hit.doc_id));
  view.answer.hits.push(...fresh);
  view.tokens.see(fresh);
  view.offset += hits.length;
  view.lastPage = hits.length;
  return fresh.length;
}

/** A message about the added hits. */
export function toldMore(added, shown) {
  if (!added) return "No more hits.";
  const all = shown.views.reduce((sum, view) => sum + view.answer.hits.length, 0);
  return `${plural(added, "more hit")}, ${all} in total`;
}
