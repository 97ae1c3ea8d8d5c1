"""The query writer: a sequence-to-sequence model that writes queries that a passage answers (doc2query).

Any Hugging Face sequence-to-sequence model can be used. Without one, training starts from an encoder: the
encoder reads the passage, and a decoder initialized with its weights writes the query. Only the decoder's
attention to the passage and its output layer are new.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, EncoderDecoderModel

from coil.errors import MissingModelFile, ModelError, OptionMismatch, WrongShape
from coil.tokens.model_json import COPY
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.backbone import BackboneModel, load_backbone, read_backbone_config
from coil.vectors.model_files import BACKBONE_FILE, apply_umask
from coil.vectors.quiet import quiet

NO_LABEL = -100  # marks padding in a target


class QueryWriter(BackboneModel):
    """A model of p(query | passage), for training and for sampling queries."""

    def __init__(self, backbone: nn.Module, new: frozenset[str] = frozenset()) -> None:
        """`new` names the weights that are initialized at random."""
        super().__init__(backbone)
        self._new = new

    @property
    def first_id(self) -> int:
        """The token that starts a written query."""
        return int(self.backbone.config.decoder_start_token_id)  # type: ignore[union-attr, arg-type]

    def is_new(self, name: str) -> bool:
        """Whether a weight was not in the model that training starts from."""
        return name.removeprefix("backbone.") in self._new

    def log_likelihood(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        """Σ log p of the tokens of each query, given its passage, [batch]; NO_LABEL is padding."""
        first = labels.new_full((len(labels), 1), self.first_id)
        written = torch.cat([first, labels[:, :-1]], dim=1).clamp_min(0)
        logits = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=written, use_cache=False
        ).logits
        losses = functional.cross_entropy(
            logits.float().transpose(1, 2), labels, ignore_index=NO_LABEL, reduction="none"
        )
        return -losses.sum(1)

    def save_pretrained(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write a Hugging Face folder; the caller writes the tokenizer."""
        whole: Any = copy.deepcopy(self.backbone).to("cpu", dtype)
        with quiet():
            whole.save_pretrained(folder)
        for path in folder.glob("*.safetensors"):
            apply_umask(path)

    @classmethod
    def from_pretrained(cls, folder: Path) -> QueryWriter:
        """Read a Hugging Face folder; every weight must be present."""
        config = read_backbone_config(folder)
        if not getattr(config, "is_encoder_decoder", False):
            raise ModelError(
                f"{folder} contains a {config.model_type} model, which is not a sequence-to-sequence model",
                "pass the folder of one, such as T5 or BART, or train one with `coil train --kind seq2seq`",
            )
        if not any((folder / name).is_file() for name in (BACKBONE_FILE, f"{BACKBONE_FILE}.index.json")):
            raise MissingModelFile(
                f"{folder / BACKBONE_FILE} is missing", "convert the weights to safetensors"
            )
        auto: Any = AutoModelForSeq2SeqLM
        try:
            with quiet():
                model, loaded = auto.from_pretrained(
                    folder, dtype=torch.float32, local_files_only=True, use_safetensors=True,
                    trust_remote_code=False, output_loading_info=True,
                )  # fmt: skip
        except Exception as error:  # each architecture fails in its own way
            raise ModelError(f"{folder} cannot be loaded: {str(error)[:300]}", COPY) from error
        wrong = sorted(map(str, (*loaded["missing_keys"], *loaded.get("mismatched_keys", ()))))
        if wrong:
            raise WrongShape(
                f"{folder}: the weights {', '.join(wrong)[:200]} are missing or do not match config.json",
                "the weights and the configuration belong to different models",
            )
        if getattr(model.config, "decoder_start_token_id", None) is None:
            raise ModelError(f"{folder / 'config.json'} has no decoder_start_token_id", COPY)
        return cls(model)

    @classmethod
    def from_base(cls, base: Path, tokenizer: Tokenizer) -> QueryWriter:
        """A model to train: a sequence-to-sequence model, or one built from an encoder."""
        if getattr(read_backbone_config(base), "is_encoder_decoder", False):
            return cls.from_pretrained(base)
        encoder: Any = load_backbone(base)
        config: Any = copy.deepcopy(encoder.config)
        config.is_decoder = config.add_cross_attention = True
        auto: Any = AutoModelForCausalLM
        try:
            decoder = auto.from_config(config)
            EncoderDecoderModel(encoder=encoder, decoder=decoder)
            own = decoder.base_model.state_dict()
            if not any("crossattention" in name for name in own):
                raise ValueError("it does not support cross-attention")
        except Exception as error:
            raise OptionMismatch(
                f"a {config.model_type} model cannot write queries: {str(error)[:200]}",
                "start from a BERT- or RoBERTa-like model, or from a sequence-to-sequence model",
            ) from error
        known = {name: weight for name, weight in encoder.state_dict().items() if name in own}
        decoder.base_model.load_state_dict(known, strict=False)
        whole: Any = EncoderDecoderModel(encoder=encoder, decoder=decoder)
        whole.config.decoder_start_token_id = tokenizer.prefix[0]
        whole.config.eos_token_id = end_of(tokenizer)
        whole.config.pad_token_id = config.pad_token_id or 0
        whole.config.vocab_size = config.vocab_size
        kept = {f"encoder.{name}" for name, _ in encoder.named_parameters()}
        kept |= {f"decoder.{decoder.base_model_prefix}.{name}" for name in known}
        return cls(whole, frozenset(n for n, _ in whole.named_parameters() if n not in kept))


def end_of(tokenizer: Tokenizer) -> int:
    """The token that ends a written query."""
    if not tokenizer.suffix:
        raise OptionMismatch(
            f"{tokenizer.where} adds no token after a text, so a generated query would never end"
        )
    return tokenizer.suffix[0]
