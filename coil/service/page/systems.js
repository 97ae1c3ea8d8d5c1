// The five systems that one index answers as, and which of their numbers say something.

export const SYSTEMS = [
  { by: "coil", name: "COIL", what: "words, how rare they are, what they mean here, and the text as a whole" },
  { by: "tokens", name: "Words in context", what: "words, how rare they are and what they mean here" },
  { by: "bm25", name: "BM25", what: "words and how rare they are" },
  { by: "dense", name: "Dense", what: "the text as a whole" },
  { by: "hybrid", name: "Hybrid", what: "BM25 and the text as a whole" },
];

export const isSystem = (by) => SYSTEMS.some((system) => system.by === by);
export const nameOfSystem = (by) => SYSTEMS.find((system) => system.by === by).name;

/** Whether a model has the vectors that a system needs; where nothing is known about it, it may. */
export function canAnswer(by, facts) {
  const { n_t: words = 1, n_c: sentence = 1 } = facts?.model?.config ?? {};
  if (by === "tokens") return words > 0;
  return sentence > 0 || (by !== "dense" && by !== "hybrid");
}

/** Whether a system looks at single words. */
export const readsWords = (by) => by !== "dense";

/** Which numbers of matches say something: BM25 compares no contexts, and the paper's COIL weighs no words. */
export function figuresOf(matches, by) {
  const compared = by === "coil" || by === "tokens";
  const plain = matches.every(({ fit, similarity, floored }) => fit === (floored ? 0 : similarity));
  return {
    rarity: matches.some((match) => match.rows_with > 0),
    fit: !compared || !matches.length ? null : plain ? "similarity" : "fit",
  };
}

/** The number behind the name that `figuresOf` gives, of a match or of another mention. */
export const fitOf = (mention, name) => (name === "similarity" ? mention.similarity : mention.fit);
