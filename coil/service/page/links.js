// Addresses in texts and fields, as links. Only http and https: a document may hold any address.

import { make } from "./dom.js";

const ADDRESS = /\bhttps?:\/\/[^\s<>"'`“”‘’]+/giu;

const OPENS = { ")": "(", "]": "[", "}": "{" };

/** Where a text has addresses: `{ span, href }`, the span in UTF-16 units. */
export function findLinks(text) {
  return [...text.matchAll(ADDRESS)].flatMap(({ 0: found, index }) => {
    const written = withoutEnd(found);
    const href = hrefOf(written);
    return href ? [{ span: [index, index + written.length], href }] : [];
  });
}

/** A sentence goes on after an address: its full stop, and a bracket that was opened before it, are not part of it. */
function withoutEnd(written) {
  const counts = countBrackets(written); // once: an address may end in thousands of them
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

/** The address of a link; null for what is not one of http or https. */
export function hrefOf(written) {
  if (typeof written !== "string" || !/^https?:\/\/\S+$/i.test(written) || !URL.canParse(written)) return null;
  const { protocol, hostname, href } = new URL(written);
  return /^https?:$/.test(protocol) && hostname ? href : null;
}

/** A link to another site; it opens in a tab that knows nothing of this one. */
export const linkTo = (href, words, options = {}) =>
  make("a", { class: "link", href, target: "_blank", rel: "noopener noreferrer", title: `Open ${href} in a new tab`, ...options }, words);
