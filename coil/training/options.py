"""TrainingOptions: a complete recipe, saved next to the model it produced."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from coil.errors import OptionMismatch
from coil.tokens.profile import WORDS, GammaRule, ListKeyKind, ScoringProfile, Unlisted, Weight
from coil.vectors.config import ModelConfig, Pooling, SentenceNorm, TokenNorm

Kind = Literal["coil", "colbert", "cross-encoder", "seq2seq"]
Freeze = Literal["nothing", "embeddings", "backbone"]
Init = Literal["random", "principal"]
Teacher = Literal["none", "hybrid", "file"]


_OF_COIL = ("keep", "keep_tokens", "token_only", "freeze_sentence", "non_negative")


def _option(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class TrainingOptions:
    """The defaults are the paper's recipe; extensions are off."""

    # The model
    kind: Kind = _option(
        "coil",
        "Kind of model: COIL (including dense retrievers and term weights), or a system to compare it with.",
    )
    n_t: int = _option(32, "Dimensions of the token vectors; 0 trains a dense retriever.")
    n_c: int = _option(768, "Dimensions of the sentence vector; 0 trains COIL-tok.")
    pooling: Pooling = _option("cls", "How the sentence vector is pooled.")
    sentence_norm: SentenceNorm = _option(
        "none",
        "LayerNorm after the sentence projection (layer), or unit length before it (unit).",
    )
    token_norm: TokenNorm = _option(
        "none", "Scale token vectors to unit length (unit), so that their products are cosines."
    )
    non_negative: bool = _option(False, "Floor token vectors at 0; with --n-t 1 they are term weights.")
    list_key: ListKeyKind = _option("wordpiece", "Which tokens share an inverted list.")
    unlisted: Unlisted = _option("nothing", "Which tokens have no list.")
    floor: bool = _option(True, "Floor the contribution of each query token at 0.")
    weight: Weight = _option(
        "one", "Weight of a match: 1 or the BM25 weight of the word; with 'bm25', α, β and γ are learned."
    )
    alpha: float = _option(0.0, "α: weight of a match regardless of its context.")
    beta: float = _option(1.0, "β: weight of the product of the token vectors.")
    gamma: float = _option(1.0, "γ: weight of the product of the sentence vectors.")
    gamma_rule: GammaRule = _option(
        "constant", "Use γ unchanged (constant), or times √(n − ½) for n listed query words (root)."
    )
    k1: float = _option(0.9, "BM25 constant for term frequency, with --weight bm25.")
    b: float = _option(0.4, "BM25 constant for passage length, with --weight bm25.")
    fill: int = _option(
        32, "With --kind colbert: pad shorter queries with mask tokens to this length; 0 disables padding."
    )
    query_length: int = _option(16, "Maximum query length in tokens when the model is used.")
    document_length: int = _option(512, "Maximum document length in tokens when the model is used.")
    # The optimizer
    queries: int = _option(8, "Queries per batch, in total over all processes.")
    hard_negatives: int = _option(7, "Hard negatives per query in a batch.")
    epochs: float = _option(5.0, "Passes over the pairs, unless --steps is given; 0 saves the initial model.")
    steps: int = _option(0, "Number of batches; 0 uses --epochs instead.")
    lr: float = _option(3e-6, "Learning rate of the language model.")
    head_lr: float = _option(0.0, "Learning rate of the projections; 0 uses --lr.")
    factor_lr: float = _option(0.0, "Learning rate of the logarithms of α, β and γ; 0 uses --head-lr.")
    warmup: float = _option(0.1, "Share of the steps for linear warm-up; the rate then decays linearly.")
    weight_decay: float = _option(0.0, "Weight decay of AdamW, not applied to biases and norms.")
    clip: float = _option(1.0, "Maximum norm of the gradient; 0 disables clipping.")
    freeze: Freeze = _option("nothing", "Which part of the language model is frozen.")
    freeze_sentence: bool = _option(False, "Freeze the sentence projection.")
    sentence_init: Init = _option(
        "random",
        "'principal' initializes the sentence projection with the principal directions of the texts.",
    )
    token_init: Init = _option(
        "random",
        "'principal' initializes the token projection with the principal directions of words in context.",
    )
    dropout: float = _option(-1.0, "Dropout of the language model during training; -1 keeps its own setting.")
    # The batches
    train_query_length: int = _option(
        0, "Maximum query length in tokens during training; 0 uses --query-length."
    )
    train_document_length: int = _option(
        0, "Maximum passage length in tokens during training; 0 uses --document-length."
    )
    one_source: bool = _option(False, "Draw all pairs of a batch from one pairs file.")
    source_power: float = _option(
        1.0, "With --one-source: draw a file with probability proportional to size ** POWER."
    )
    spans: float = _option(0.0, "Share of queries replaced with a span of their passage.")
    span_titles: float = _option(
        0.5, "Share of span examples whose passage starts with the query of its pair."
    )
    span_cut: float = _option(0.9, "Share of span examples in which the span is removed from its passage.")
    micro_batch_tokens: int = _option(
        16_384, "Tokens (including padding) that the language model processes at a time."
    )
    # The loss
    keep: float = _option(
        0.0, "Weight of the term that keeps the sentence vector near that of the starting model."
    )
    keep_tokens: float = _option(
        0.0, "Weight of the term that keeps the token vectors near those of the starting model."
    )
    teacher: Teacher = _option(
        "none", "Source of the soft labels; 'hybrid' is the starting model plus BM25, within the batch."
    )
    teacher_weight: float = _option(1.0, "Weight of the KL term to the teacher.")
    teacher_dense: float = _option(0.7, "With 'hybrid': weight of the starting model; the rest is BM25.")
    teacher_scale: float = _option(1.0, "Factor on the teacher's scores before the softmax.")
    contrast: float = _option(1.0, "Weight of the paper's contrastive loss.")
    token_only: float = _option(0.0, "Weight of the same loss on the token part alone.")
    # The rest
    seed: int = _option(13, "Random seed.")
    bf16: bool = _option(True, "On a GPU: run the language model in bfloat16, with weights kept in fp32.")
    validation_queries: int = _option(512, "Number of queries held out for validation.")
    validation_passages: int = _option(
        8192, "Maximum number of passages to search with the held-out queries."
    )
    validate_every: int = _option(500, "Steps between validations; 0 validates only at the end.")
    checkpoint_every: int = _option(500, "Steps between checkpoints; 0 disables them.")
    average: float = _option(
        0.0, "Share of the starting weights in the saved language model; 0.5 is the mean of both."
    )
    half: bool = _option(False, "Store the trained language model in fp16.")

    def __post_init__(self) -> None:
        self._check_values()
        if self.queries < 1 or self.micro_batch_tokens < 1:
            raise OptionMismatch("queries and micro_batch_tokens must be at least 1")
        for name in ("spans", "span_titles", "span_cut", "teacher_dense", "warmup", "average"):
            if getattr(self, name) > 1.0:
                raise OptionMismatch(f"{name} is {getattr(self, name)}; expected a share between 0 and 1")
        if self.dropout >= 1.0:
            raise OptionMismatch(f"dropout is {self.dropout}; expected a share below 1")
        if not (self.contrast or self.token_only or (self.teacher != "none" and self.teacher_weight)):
            raise OptionMismatch(
                "all loss weights are 0", "set --contrast or --token-only above 0, or use --teacher"
            )
        self._check_kind()
        _ = self.config  # which has checks of its own
        if not ((self.n_t and self.beta) or self.alpha or (self.n_c and self.gamma)):
            raise OptionMismatch(
                "the score has no parts: alpha, beta and gamma are 0 or have no vectors",
                "set --alpha, --beta or --gamma above 0",
            )
        if self.n_c == 0 and self.keep:
            raise OptionMismatch("--keep requires a sentence vector, but n_c is 0", "set --keep 0")
        if self.n_t == 0 and self.keep_tokens:
            raise OptionMismatch("--keep-tokens requires token vectors, but n_t is 0", "set --keep-tokens 0")
        if self.token_only and not ((self.n_t or self.alpha) and self.n_c):
            raise OptionMismatch("--token-only requires both parts of the score", "set --token-only 0")
        if self.token_init == "principal" and self.non_negative:
            raise OptionMismatch(
                "principal directions have both signs, so half of the values would be floored at 0",
                "use --token-init random with --non-negative",
            )
        if self.sentence_init == "principal" and self.sentence_norm == "layer":
            raise OptionMismatch(
                "--sentence-norm layer would undo --sentence-init principal",
                "use --sentence-norm unit or none",
            )

    def _check_kind(self) -> None:
        """Options about COIL's vectors must not be set for another kind of model."""
        if self.kind == "coil":
            return
        asked = [name for name in _OF_COIL if getattr(self, name)]
        asked += ["teacher"] if self.teacher == "hybrid" else []
        asked += ["sentence_init"] if self.sentence_init == "principal" else []
        asked += ["token_norm"] if self.token_norm == "unit" else []
        if self.kind == "colbert":
            asked += ["n_c"] if self.n_c else []
        elif self.token_init == "principal":
            asked.append("token_init")
        if self.kind == "seq2seq" and self.teacher == "file":
            asked.append("teacher")
        if asked:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in asked)
            raise OptionMismatch(
                f"a model of the kind {self.kind!r} cannot be trained with {names}",
                "reset these options: 0 for numbers, none, random or --no- for the others",
            )

    def _check_values(self) -> None:
        """Check that each value has its type, is one of its choices and not negative (dropout may be -1)."""
        kinds = get_type_hints(TrainingOptions)
        for option in fields(self):
            value, kind = getattr(self, option.name), kinds[option.name]
            choices = get_args(kind)
            if choices and value not in choices:
                raise OptionMismatch(f"{option.name} is {value!r}; it must be one of {', '.join(choices)}")
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if not choices and type(value) is not kind:
                raise OptionMismatch(f"{option.name} is {value!r}; expected {kind.__name__}")
            if kind in (int, float) and not (value >= 0 or (option.name == "dropout" and value == -1)):
                raise OptionMismatch(f"{option.name} is {value}; it must be 0 or more")
            if kind is float and value == float("inf"):
                raise OptionMismatch(f"{option.name} must be finite")

    @property
    def config(self) -> ModelConfig:
        """The shape of the model that this recipe trains."""
        return ModelConfig(
            n_t=self.n_t,
            n_c=self.n_c,
            pooling=self.pooling,
            sentence_norm=self.sentence_norm,
            token_norm=self.token_norm,
            non_negative=self.non_negative,
            profile=ScoringProfile(
                floor=self.floor,
                list_key=self.list_key,
                unlisted=self.unlisted,
                weight=self.weight,
                alpha=self.alpha,
                beta=self.beta,
                gamma=self.gamma,
                gamma_rule=self.gamma_rule,
                k1=self.k1,
                b=self.b,
                query_length=self.query_length,
                document_length=self.document_length,
            ),
        )

    @property
    def lengths(self) -> tuple[int, int]:
        """Maximum lengths of a query and a passage during training, in tokens."""
        return (
            self.train_query_length or self.query_length,
            self.train_document_length or self.document_length,
        )

    def to_json(self) -> dict[str, Any]:
        """The recipe as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any], where: str) -> TrainingOptions:
        """Read a recipe; an unknown name is an error, and a missing one defaults to the paper's value."""
        unknown = sorted(set(value) - {f.name for f in fields(cls)})
        if unknown:
            raise OptionMismatch(f"{where} has options unknown to this version: {', '.join(unknown)}")
        return cls(**value)


PRESETS = {
    "paper": TrainingOptions(),
    "default": TrainingOptions(
        n_t=32,
        n_c=256,
        pooling="mean",
        sentence_norm="unit",
        token_norm="unit",
        sentence_init="principal",
        token_init="principal",
        freeze="embeddings",
        freeze_sentence=True,
        **WORDS.to_json(),
        train_query_length=64,
        train_document_length=256,
        queries=256,
        hard_negatives=3,
        steps=300,
        lr=3e-5,
        head_lr=2e-4,
        factor_lr=5e-3,
        dropout=0.0,
        one_source=True,
        source_power=0.5,
        spans=0.4,
        keep=5.0,
        teacher="hybrid",
        teacher_scale=3.0,
        token_only=0.3,
        micro_batch_tokens=65_536,
        validation_queries=256,
        validation_passages=4096,
        half=True,
    ),
}
