// The requests of the page to the server.

import { plural } from "./dom.js";
import { parseJson } from "./exact.js";
import { MOST_IN_URL } from "./state.js";
import { isSystem } from "./systems.js";

/** An error as reported by the server: what, why, and what to do about it. */
export class Problem extends Error {
  constructor({ title, detail, remedy, request_id: requestId, status }) {
    super(detail || title);
    Object.assign(this, { title: title || "The search failed", detail, remedy, requestId, status });
  }
}

/** The server could not even say which part of such a request is too long. */
function checkLength(address, { q = "", filter = "" }) {
  if (address.href.length <= MOST_IN_URL) return;
  const [name, text] = filter.length > q.length ? ["filter", filter] : ["query", q];
  const detail = `the ${name} has ${plural(Array.from(text).length, "character")}, which is too long`;
  throw new Problem({ title: `The ${name} is too long`, detail, remedy: `shorten the ${name}`, status: 422 });
}

// Whether an answer has what is read from it: a proxy, or another program on this port, may answer anything.
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const areAll = (values, is) => Array.isArray(values) && values.every(is);
const isDocument = (one) => isObject(one) && typeof one.doc_id === "string" && typeof one.text === "string" && isObject(one.fields);
const isHit = (one) => isDocument(one) && typeof one.score === "number";
const areHits = (one) => isObject(one) && typeof one.query === "string" && isSystem(one.by) && areAll(one.hits, isHit);
const isExplanation = (one) => isObject(one) && typeof one.score === "number" && Array.isArray(one.matches);
const areExplained = (one) => isExplanation(one) || (isObject(one) && isExplanation(one.first) && isExplanation(one.second));
const areIndexes = (one) => isObject(one) && areAll(one.indexes, (index) => isObject(index) && typeof index.name === "string");

async function ask(path, parameters, signal, isWhole) {
  const address = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) {
      address.searchParams.set(name, String(value));
    }
  }
  checkLength(address, parameters);
  let response;
  try {
    response = await fetch(address, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "The server is not responding",
      detail: "The connection failed.",
      remedy: "Check that coil serve is running, then try again.",
    });
  }
  let body = null;
  try {
    body = parseJson(await response.text());
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && isWhole(body)) return body;
  throw new Problem({
    title: response.ok ? "The server’s response cannot be read" : `The server returned ${response.status}`,
    status: response.status,
    ...(response.ok ? {} : (body ?? {})),
  });
}

/** The path of an index. A name with other characters would be that of another endpoint. */
function of(index) {
  if (/^\w[\w.-]*$/.test(index)) return `v1/indexes/${encodeURIComponent(index)}`;
  throw new Problem({ title: "Not Found", detail: `there is no index '${index}'`, remedy: "choose another index", status: 404 });
}

export const listIndexes = (signal) => ask("v1/indexes", {}, signal, areIndexes);
export const describeIndex = (index, signal) => ask(of(index), {}, signal, isObject);

/** Search with a system; `by` is its name, `offset` the number of its hits that are already loaded. */
export const search = (state, by, signal, offset = 0) =>
  ask(
    `${of(state.index)}/search`,
    {
      q: state.q,
      k: state.k,
      filter: state.filter,
      by,
      offset: offset || null,
      suggest: !offset,
      sort: state.sort,
      fold_duplicates: state.fold,
      stats: true,
      matches: true,
    },
    signal,
    areHits,
  );

export const explain = (state, by, docId, versus, signal) =>
  ask(`${of(state.index)}/explain`, { q: state.q, doc_id: docId, versus, by }, signal, areExplained);

// Not as a part of the path, where a browser resolves "..".
export const readDocument = (index, docId, signal) =>
  ask(`${of(index)}/documents`, { doc_id: docId }, signal, isDocument);

/** Upload a file of JSON lines. `sent` is called with the share sent so far. */
export function sendDocuments(index, file, token, sent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch does not report upload progress
    request.open("POST", new URL(`${of(index)}/documents`, document.baseURI));
    request.responseType = "json";
    const bytes = Array.from(new TextEncoder().encode(token), (byte) => String.fromCharCode(byte)); // as headers are
    request.setRequestHeader("Authorization", `Bearer ${bytes.join("")}`);
    request.setRequestHeader("Content-Type", "application/x-ndjson");
    request.upload.addEventListener("progress", ({ loaded, total }) => sent(total ? loaded / total : 0));
    request.addEventListener("load", () => {
      const { status, response } = request;
      if (status >= 200 && status < 300 && response) resolve(response);
      else reject(new Problem({ title: `The server returned ${status}`, status, ...(response ?? {}) }));
    });
    request.addEventListener("error", () =>
      reject(new Problem({ detail: "The connection was lost", remedy: "the file may exceed the server’s limit, or the server has stopped" })),
    );
    request.send(file);
  });
}
