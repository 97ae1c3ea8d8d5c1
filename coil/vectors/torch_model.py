"""The COIL model in PyTorch: any Hugging Face encoder with a token and a sentence projection on top."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from coil.tokens.profile import ScoringProfile
from coil.vectors.backbone import BackboneModel, load_backbone
from coil.vectors.config import CONFIG_FILE, ModelConfig


class CoilModel(BackboneModel):
    """LM(text) → v_i = W_tok LM(text, i) + b_tok for each token, v_cls = W_cls LM(text, CLS) + b_cls.

    A non-negative model floors v_i at 0: with n_t = 1, v_i is a term weight, as in DeepCT. With unit token
    vectors, v_i is scaled to length 1.

    With BM25 weights, α, β and γ of the scoring profile are learned: each is its value in the configuration
    times e^x, so it stays positive, or stays 0 if it is 0.
    """

    def __init__(self, config: ModelConfig, backbone: nn.Module) -> None:
        super().__init__(backbone)
        self.config = config
        self.tok_proj = nn.Linear(self.width, config.n_t) if config.n_t else None
        if self.tok_proj is not None and config.non_negative:
            nn.init.ones_(self.tok_proj.bias)  # start from weights of about 1: below 0 there is no gradient
        self.cls_proj = nn.Linear(self.width, config.n_c) if config.n_c else None
        self.cls_norm = nn.LayerNorm(config.n_c) if config.n_c and config.sentence_norm == "layer" else None
        self.log_factors = nn.Parameter(torch.zeros(3)) if config.profile.weight == "bm25" else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """[batch, length] ids → token vectors [batch, length, n_t] and sentence vectors [batch, n_c]."""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.vectors(hidden, attention_mask)

    def vectors(self, hidden: Tensor, attention_mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The language model's states [batch, length, width] → token and sentence vectors."""
        tokens = self.token_vectors(hidden)
        if self.cls_proj is None:
            return tokens, None
        return tokens, self.sentence(self.pool(hidden, attention_mask))

    def token_vectors(self, hidden: Tensor) -> Tensor | None:
        """The language model's states [batch, length, width] → token vectors [batch, length, n_t]."""
        if self.tok_proj is None:
            return None
        tokens: Tensor = self.tok_proj(hidden)
        if self.config.token_norm == "unit":
            return nn.functional.normalize(tokens, dim=-1)
        return tokens.relu() if self.config.non_negative else tokens

    def sentence(self, pooled: Tensor) -> Tensor:
        """[batch, width] → sentence vectors [batch, n_c]."""
        assert self.cls_proj is not None
        sentence: Tensor = self.cls_proj(pooled)
        return self.cls_norm(sentence) if self.cls_norm is not None else sentence

    def pool(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """[batch, length, width] → [batch, width], before the sentence projection."""
        if self.config.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = attention_mask.to(hidden.dtype)
            pooled = self.sum_tokens(hidden, mask) / mask.sum(1, keepdim=True)
        return nn.functional.normalize(pooled, dim=-1) if self.config.sentence_norm == "unit" else pooled

    @staticmethod
    def sum_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
        """The sum of the real tokens, [batch, length, width] → [batch, width]."""
        return (hidden * mask.unsqueeze(-1)).sum(1)

    def factors(self) -> Tensor | None:
        """The current α, β and γ; None if they are constants."""
        if self.log_factors is None:
            return None
        profile = self.config.profile
        start = self.log_factors.new_tensor([profile.alpha, profile.beta, profile.gamma])
        return start * self.log_factors.exp()

    def profile(self) -> ScoringProfile:
        """The scoring profile with the current α, β and γ."""
        if self.log_factors is None:
            return self.config.profile
        start, grown = self.config.profile, self.log_factors.detach().double().exp().tolist()
        alpha, beta, gamma = (
            float(f"{value * factor:.6g}")
            for value, factor in zip((start.alpha, start.beta, start.gamma), grown, strict=True)
        )
        return replace(start, alpha=alpha, beta=beta, gamma=gamma)

    def heads(self) -> dict[str, Tensor]:
        """The projections: the weights that are in neither the language model nor the profile."""
        return {name: w for name, w in super().heads().items() if name != "log_factors"}

    @classmethod
    def from_base(cls, config: ModelConfig, base: Path) -> CoilModel:
        """A new model on a pretrained language model; the projections are random and must be trained."""
        return cls(config, load_backbone(base))

    def save_pretrained(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write configuration and weights; the caller copies the tokenizer."""
        self.save_weights(folder, dtype)
        replace(self.config, profile=self.profile()).save(folder)

    @classmethod
    def from_pretrained(cls, folder: Path) -> CoilModel:
        """Read what `save_pretrained` wrote; every weight must be present and have the right shape."""
        config = ModelConfig.load(folder)
        model = cls(config, load_backbone(folder))
        model.load_heads(folder, CONFIG_FILE)
        return model.float()
