"""Give a trained model unit token vectors that tell senses apart. Trains on a CPU, in minutes.

    python -m experiments.token_head MODEL --pairs FILE... --wordnet DIR --out DIR

Only the token projection is trained, for given α, β and γ. The language model and the sentence projection
stay as they are, so every text is encoded only once. The loss is the sum of
- the cross-entropy of the whole score and that of the token part, over the passages of a batch: the positives
  of its queries, which are all of one source, and their BM25 negatives;
- for nouns in two senses (`experiments.wordnet`), how much the cosine of the other sense exceeds that of the
  same one;
- for words that are the only word of a query, their distance from mentions of the word in passages: without
  context, nothing says that a mention does not fit, and the word must find its document.
The result is the mean of several runs with different seeds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coil.texts.pairs import read_pairs
from coil.training.batch_scores import BatchEquation, TextVectors
from coil.training.passage_statistics import PassageStatistics
from coil.vectors.config import ModelConfig
from coil.vectors.encoder import Encoder
from coil.vectors.export import export_model
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.token_vectors import TokenVectors
from coil.vectors.torch_model import CoilModel
from experiments.systems import say
from experiments.wordnet import Mention, read_nouns

PAIRS = 2000  # of a source
CHARACTERS = 700  # of a passage
NEGATIVES = 20  # mined for each query
STEPS, WARMUP = 1500, 50
QUERIES, CHOSEN, TRIPLES = 48, 3, 512  # of a batch: queries, negatives of each, nouns in two senses
LR = 1e-3
FACTORS = (0.35, 0.85, 8.6)  # α, β and γ
SENSE_WEIGHT, SENSE_SCALE = 6.0, 0.1
LONE_WEIGHT, LONE_WORDS, SHORTEST = 0.5, 12_000, 3  # the shortest in characters
LONE = 256  # of a batch


@dataclass(frozen=True, eq=False)
class States:
    """Texts as the language model encodes them: the states of their listed words."""

    vectors: Tensor  # [mentions, width], float16
    lists: Tensor  # [mentions]
    starts: Tensor  # [texts + 1] first mention of each text
    sentences: Tensor  # [texts, n_c]

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def rows(self) -> Tensor:
        """The text of each mention."""
        return torch.repeat_interleave(torch.arange(len(self)), self.starts.diff())


@dataclass(frozen=True, eq=False)
class Source:
    """The pairs of one file."""

    queries: States
    passages: States
    positives: list[int]  # [queries]
    negatives: Tensor  # [queries, NEGATIVES]


@dataclass(frozen=True, eq=False)
class Lone:
    """Words that are queries of their own, and their mentions in the passages of one source."""

    states: Tensor  # [words, width]
    mentions: list[Tensor]  # [words] of the source's passages


class Lists:
    """Numbers for list keys."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def keys(self) -> list[str]:
        """The keys, in the order of their numbers."""
        return list(self._numbers)

    def states(self, encoded: Iterable[TokenVectors]) -> States:
        """Collect the listed words of texts."""
        vectors, lists, lengths, sentences = [], [], [], []
        for text in encoded:
            listed = [(i, key) for i, key in enumerate(text.keys) if key is not None]
            vectors.append(text.vectors[[i for i, _ in listed]].astype(np.float16))
            lists += [self._numbers.setdefault(key, len(self._numbers)) for _, key in listed]
            lengths.append(len(listed))
            sentences.append(text.sentence)
        return States(
            torch.from_numpy(np.concatenate(vectors)),
            torch.tensor(lists),
            torch.tensor([0, *lengths]).cumsum(0),
            torch.from_numpy(np.array(sentences)),
        )


class Heads(nn.Module):
    """What is trained."""

    def __init__(self, model: CoilModel) -> None:
        super().__init__()
        assert model.tok_proj is not None
        self.token = nn.Linear(model.width, model.config.n_t)
        self.token.load_state_dict(model.tok_proj.state_dict())

    def tokens(self, states: Tensor) -> Tensor:
        """Unit token vectors of states."""
        return functional.normalize(self.token(states.float()), dim=-1)

    def texts(self, states: States, chosen: Sequence[int]) -> TextVectors:
        """The vectors of some texts."""
        ranges = [(int(states.starts[i]), int(states.starts[i + 1])) for i in chosen]
        lengths = torch.tensor([end - begin for begin, end in ranges])
        return TextVectors(
            self.tokens(torch.cat([states.vectors[begin:end] for begin, end in ranges])),
            torch.cat([states.lists[begin:end] for begin, end in ranges]),
            torch.repeat_interleave(torch.arange(len(chosen)), lengths),
            states.sentences[list(chosen)],
            len(chosen),
        )


def main() -> None:
    """Encode, train with every seed, and write the mean as a model folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", nargs="+", type=Path, required=True)
    parser.add_argument("--wordnet", type=Path, required=True, help="the folder with data.noun")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    model = CoilModel.from_pretrained(arguments.model)
    with tempfile.TemporaryDirectory() as scratch:
        encoder = OnnxEncoder(export_states(model, arguments.model, Path(scratch)))
        lists = Lists()
        sources = [read_source(path, encoder, lists, model.config) for path in arguments.pairs]
        nouns = read_mentions(read_nouns(arguments.wordnet), encoder)
        lone = read_lone(sources, lists, encoder)
    say(f"{len(nouns):,} nouns in several senses")
    equation = BatchEquation(model.config.profile, count(sources, len(lists)))
    trained = [
        fit(Heads(model), sources, nouns, lone, equation, seed) for seed in range(1, arguments.seeds + 1)
    ]
    write(model, average(trained, model), arguments.model, arguments.out)


def export_states(model: CoilModel, folder: Path, out: Path) -> Path:
    """A model folder whose token vectors are the states of the language model, as int8 ONNX."""
    wide = CoilModel(replace(model.config, n_t=model.width, token_norm="none"), model.backbone)
    assert wide.tok_proj is not None
    assert wide.cls_proj is not None
    assert model.cls_proj is not None
    nn.init.eye_(wide.tok_proj.weight)
    nn.init.zeros_(wide.tok_proj.bias)
    wide.cls_proj.load_state_dict(model.cls_proj.state_dict())
    wide.save_pretrained(out)
    shutil.copyfile(folder / "tokenizer.json", out / "tokenizer.json")
    export_model(out, ["int8"])
    return out


def read_source(path: Path, encoder: Encoder, lists: Lists, config: ModelConfig) -> Source:
    """Encode the first pairs of a file and find BM25 negatives among their passages."""
    pairs = [pair for pair, _ in zip(read_pairs(path), range(PAIRS), strict=False)]
    passages = sorted({pair.positive[:CHARACTERS] for pair in pairs})
    number = {text: i for i, text in enumerate(passages)}
    positives = [number[pair.positive[:CHARACTERS]] for pair in pairs]
    queries = lists.states(encoder.encode_queries(pair.query for pair in pairs))
    documents = lists.states(encoder.encode_documents(passages))
    say(f"{path.name}: {len(pairs):,} pairs, {len(documents):,} passages")
    source = Source(queries, documents, positives, torch.empty(0))
    return replace(source, negatives=mine(source, count([source], len(lists)), config))


def mine(source: Source, statistics: PassageStatistics, config: ModelConfig) -> Tensor:
    """The passages with the highest BM25 scores other than the positive, [queries, NEGATIVES]."""
    sides = [
        TextVectors(torch.empty(len(side.lists), 0), side.lists, side.rows, None, len(side))
        for side in (source.queries, source.passages)
    ]
    equation = BatchEquation(config.profile.answering("bm25"), statistics)
    scores = equation(sides[0], sides[1], torch.zeros(len(source.queries), dtype=torch.long)).tokens
    assert scores is not None
    scores[torch.arange(len(source.queries)), torch.tensor(source.positives)] = -1.0
    return scores.topk(NEGATIVES).indices


def count(sources: Sequence[Source], n_lists: int) -> PassageStatistics:
    """The statistics of the passages, by source."""
    rarity, mean_length = [], []
    for source in sources:
        cells = torch.unique(source.passages.rows * n_lists + source.passages.lists)
        frequency = torch.bincount(cells % n_lists, minlength=n_lists)
        rarity.append(torch.log1p((len(source.passages) - frequency + 0.5) / (frequency + 0.5)))
        mean_length.append(len(source.passages.lists) / len(source.passages))
    return PassageStatistics(torch.stack(rarity), torch.tensor(mean_length))


@dataclass(frozen=True, eq=False)
class Noun:
    """The mentions of one noun."""

    states: Tensor  # [mentions, width]
    mentions: list[Mention]

    def triples(self) -> list[tuple[int, list[int], list[int]]]:
        """Each mention that has others of its sense, with these and with those of another field."""
        found = []
        for i, one in enumerate(self.mentions):
            same = [j for j, two in enumerate(self.mentions) if j != i and two.sense == one.sense]
            other = [j for j, two in enumerate(self.mentions) if two.field != one.field]
            if same and other:
                found.append((i, same, other))
        return found


def read_mentions(nouns: dict[str, list[Mention]], encoder: Encoder) -> list[Noun]:
    """Encode the texts and keep the states of the nouns; a text with two mentions is left out."""
    texts = [mention.text for mentions in nouns.values() for mention in mentions]
    encoded = iter(encoder.encode_documents(texts))
    found = []
    for noun, mentions in nouns.items():
        key = encoder.keys.of_word(noun)
        kept, states = [], []
        for mention in mentions:
            text = next(encoded)
            places = [i for i, other in enumerate(text.keys) if other == key]
            if len(places) == 1:
                kept.append(mention)
                states.append(text.vectors[places[0]])
        if states:
            found.append(Noun(torch.from_numpy(np.array(states)), kept))
    return [noun for noun in found if noun.triples()]


def read_lone(sources: Sequence[Source], lists: Lists, encoder: Encoder) -> list[Lone]:
    """Encode words of the passages as queries, and find their mentions in each source."""
    keys = lists.keys()
    words = [
        number
        for number, key in enumerate(keys)
        # A stem is no word: take those that are their own stem, as a person would type them.
        if len(key) >= SHORTEST and encoder.keys.of_texts([key], 16)[0].keys == (key,)
    ]
    words = random.Random(0).sample(words, min(LONE_WORDS, len(words)))
    encoded = encoder.encode_queries(keys[number] for number in words)
    states = torch.from_numpy(np.concatenate([text.vectors for text in encoded]))
    found = []
    for source in sources:
        order = torch.argsort(source.passages.lists, stable=True)
        in_order = source.passages.lists[order]
        first, last = (torch.searchsorted(in_order, torch.tensor(words), right=r) for r in (False, True))
        there = torch.nonzero(last > first).flatten().tolist()
        found.append(Lone(states[there], [order[first[i] : last[i]] for i in there]))
    return found


def fit(
    heads: Heads,
    sources: Sequence[Source],
    nouns: Sequence[Noun],
    lone: Sequence[Lone],
    equation: BatchEquation,
    seed: int,
) -> Heads:
    """Train with one seed."""
    rng = random.Random(seed)
    triples = [noun.triples() for noun in nouns]
    optimizer = torch.optim.AdamW(heads.parameters(), LR, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP) * max(0.02, 1.0 - step / STEPS)
    )
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = retrieval_loss(heads, sources, equation, rng)
        loss = loss + SENSE_WEIGHT * sense_loss(heads, nouns, triples, rng)
        loss = loss + LONE_WEIGHT * lone_loss(heads, sources, lone, rng)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            say(f"seed {seed}, step {step}: loss {float(loss.detach()):.3f}")
    return heads


def retrieval_loss(
    heads: Heads, sources: Sequence[Source], equation: BatchEquation, rng: random.Random
) -> Tensor:
    """Cross-entropy of both scores."""
    number = rng.choices(range(len(sources)), weights=[len(source.positives) for source in sources])[0]
    source = sources[number]
    asked = rng.sample(range(len(source.positives)), QUERIES)
    places: dict[int, int] = {}  # of the passages in the batch
    right = []
    for query in asked:
        right.append(places.setdefault(source.positives[query], len(places)))
        for i in rng.sample(range(NEGATIVES), CHOSEN):
            places.setdefault(int(source.negatives[query, i]), len(places))
    scores = equation(
        heads.texts(source.queries, asked),
        heads.texts(source.passages, list(places)),
        torch.full((QUERIES,), number),
        torch.tensor(FACTORS),
    )
    assert scores.tokens is not None
    target = torch.tensor(right)
    return functional.cross_entropy(scores.whole, target) + functional.cross_entropy(scores.tokens, target)


def sense_loss(
    heads: Heads,
    nouns: Sequence[Noun],
    triples: Sequence[list[tuple[int, list[int], list[int]]]],
    rng: random.Random,
) -> Tensor:
    """How much nearer the other sense is than the same one."""
    states = []
    for number in rng.choices(range(len(nouns)), k=TRIPLES):
        one, same, other = rng.choice(triples[number])
        states.append(nouns[number].states[[one, rng.choice(same), rng.choice(other)]])
    one_, same_, other_ = heads.tokens(torch.stack(states)).unbind(1)
    margin = (one_ * same_).sum(-1) - (one_ * other_).sum(-1)
    return functional.softplus(-margin / SENSE_SCALE).mean()


def lone_loss(heads: Heads, sources: Sequence[Source], lone: Sequence[Lone], rng: random.Random) -> Tensor:
    """How far words without context are from their mentions in one source."""
    number = rng.randrange(len(sources))
    words = rng.choices(range(len(lone[number].mentions)), k=LONE)
    mentions = [int(rng.choice(lone[number].mentions[word])) for word in words]
    alone, there = (
        heads.tokens(states)
        for states in (lone[number].states[words], sources[number].passages.vectors[mentions])
    )
    return (1.0 - (alone * there).sum(-1)).mean()


def average(trained: Sequence[Heads], model: CoilModel) -> Heads:
    """The mean of all weights."""
    mean = Heads(model)
    states = [heads.state_dict() for heads in trained]
    mean.load_state_dict({name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]})
    return mean


@torch.no_grad()
def write(model: CoilModel, heads: Heads, start: Path, out: Path) -> None:
    """Write the model with its new projection and factors."""
    alpha, beta, gamma = FACTORS
    profile = replace(model.config.profile, alpha=alpha, beta=beta, gamma=gamma)
    made = CoilModel(replace(model.config, token_norm="unit", profile=profile), model.backbone)
    assert made.tok_proj is not None
    assert made.cls_proj is not None
    assert model.cls_proj is not None
    made.tok_proj.load_state_dict(heads.token.state_dict())
    made.cls_proj.load_state_dict(model.cls_proj.state_dict())
    out.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(out, torch.float16)
    shutil.copyfile(start / "tokenizer.json", out / "tokenizer.json")
    say(f"wrote {out}")


if __name__ == "__main__":
    main()
