// URLs in texts and fields, as links. Only http and https, because documents may contain anything.

import { make } from "./dom.js";

const ADDRESS = /\bhttps?:\/\/[^\s<>"'`“”‘’]+/giu;

const OPENS = { ")": "(", "]": "[", "}": "{" };

/** The URLs in a text: `{ span, href }`, with the span in UTF-16 units. */
export function findLinks(text) {
  return [...text.matchAll(ADDRESS)].flatMap(({ 0: found, index }) => {
    const written = withoutEnd(found);
    const href = hrefOf(written);
    return href ? [{ span: [index, index + written.length], href }] : [];
  });
}

/** A URL without the punctuation of the sentence around it: a full stop, or a bracket that was opened before the URL. */
function withoutEnd(written) {
  const counts = countBrackets(written); // once: a URL may end in thousands of them
  let end = written.length;
  for (; end > 0; end -= 1) {
    const last = written[end - 1];
    const opens = OPENS[last];
    const loose = opens && counts[last] > counts[opens];
    if (!loose && !/[.,;:!?*_|\\]/.test(last)) break;
    if (opens) counts[last] -= 1;
  }
  return written.slice(0, end);
}

function countBrackets(written) {
  const counts = { "(": 0, ")": 0, "[": 0, "]": 0, "{": 0, "}": 0 };
  for (const [bracket] of written.matchAll(/[()[\]{}]/g)) counts[bracket] += 1;
  return counts;
}

/** The URL of a link; null if it is not an http or https URL. */
export function hrefOf(written) {
  if (typeof written !== "string" || !/^https?:\/\/\S+$/i.test(written) || !URL.canParse(written)) return null;
  const { protocol, hostname, href } = new URL(written);
  return /^https?:$/.test(protocol) && hostname ? href : null;
}

/** A link to another site; it opens in a new tab without access to this one. */
export const linkTo = (href, words, options = {}) =>
  make("a", { class: "link", href, target: "_blank", rel: "noopener noreferrer", title: `Open ${href} in a new tab`, ...options }, words);
