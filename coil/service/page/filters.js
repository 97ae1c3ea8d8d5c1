// Filters: a condition is added to one, unless it is already a part of it.

// As in coil/storage/filters.py; the difference between names, numbers and marks does not matter here.
const TOKEN = /"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[(),]|[=<>!]+|[^\s"'=<>!(),]+/gsu;
const NAME = /^[\p{L}\p{Nl}\p{No}_][\p{L}\p{N}_.-]*$/u; // what Python's [^\W\d][\w.-]* matches

/** Whether a filter can contain the name of a field. */
export const isName = (field) => NAME.test(field);

const tokensOf = (filter) => filter.match(TOKEN) ?? [];

/** The parts between a word on the top level; where a field is expected, the word is the name of one. */
function partsOf(tokens, word) {
  const parts = [[]];
  let depth = 0;
  let expected = true; // a field
  for (const token of tokens) {
    const said = token.toLowerCase();
    const joins = !expected && depth === 0 && (said === "and" || said === "or");
    depth += token === "(" ? 1 : token === ")" ? -1 : 0;
    if (joins && said === word) parts.push([]);
    else parts.at(-1).push(token);
    expected = joins || (expected && (said === "not" || token === "("));
  }
  return parts;
}

/** Whether the first and the last token are one pair of parentheses. */
function isEnclosed(tokens) {
  let depth = 0;
  const end = tokens.findIndex((token) => {
    depth += token === "(" ? 1 : token === ")" ? -1 : 0;
    return depth === 0;
  });
  return tokens[0] === "(" && end === tokens.length - 1;
}

/** The conditions that all hold where the filter does. */
function conditionsOf(tokens) {
  if (isEnclosed(tokens)) return conditionsOf(tokens.slice(1, -1));
  const parts = partsOf(tokens, "or").length > 1 ? [tokens] : partsOf(tokens, "and");
  return parts.length > 1 ? parts.flatMap(conditionsOf) : [tokens.join(" ")];
}

/** A filter that also requires a condition. */
export function narrower(filter, condition) {
  const tokens = tokensOf(filter);
  if (!tokens.length) return condition;
  if (conditionsOf(tokens).includes(tokensOf(condition).join(" "))) return filter;
  const either = partsOf(tokens, "or").length > 1;
  return `${either ? `(${filter.trim()})` : filter.trim()} and ${condition}`;
}
