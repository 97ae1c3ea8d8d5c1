// The five scoring systems of an index, and which of their numbers are informative.

export const SYSTEMS = [
  { by: "coil", name: "COIL", what: "words, their rarity and context, and the text as a whole" },
  { by: "tokens", name: "Words in context", what: "words, their rarity and context" },
  { by: "bm25", name: "BM25", what: "words and their rarity" },
  { by: "dense", name: "Dense", what: "the text as a whole" },
  { by: "hybrid", name: "Hybrid", what: "BM25 and the text as a whole" },
];

export const isSystem = (by) => SYSTEMS.some((system) => system.by === by);
export const nameOfSystem = (by) => SYSTEMS.find((system) => system.by === by).name;

/** Whether a model has the vectors that a system needs; true if nothing is known about the model. */
export function canAnswer(by, facts) {
  const { n_t: words = 1, n_c: sentence = 1 } = facts?.model?.config ?? {};
  if (by === "tokens") return words > 0;
  return sentence > 0 || (by !== "dense" && by !== "hybrid");
}

/** Whether a system scores individual words. */
export const readsWords = (by) => by !== "dense";

/** Which numbers of matches are informative: BM25 does not compare contexts, and the paper's COIL does not weight words. */
export function figuresOf(matches, by) {
  const compared = by === "coil" || by === "tokens";
  const plain = matches.every(({ fit, similarity, floored }) => fit === (floored ? 0 : similarity));
  return {
    rarity: matches.some((match) => match.rows_with > 0),
    fit: !compared || !matches.length ? null : plain ? "similarity" : "fit",
  };
}

/** The number that `figuresOf` names, of a match or of another mention. */
export const fitOf = (mention, name) => (name === "similarity" ? mention.similarity : mention.fit);
