"""Queries sampled from a sequence-to-sequence model, by top-k sampling with reproducible random numbers.

The random numbers of a text depend only on the seed and the text, so its queries do not depend on the other
texts in a batch, or on what was sampled before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from transformers import AutoTokenizer

from coil.errors import MissingModelFile, OptionMismatch
from coil.texts.values import clean
from coil.vectors.query_writer import QueryWriter
from coil.vectors.quiet import quiet


@dataclass(frozen=True)
class Sampling:
    """How queries are sampled.

    `queries` for each text, from the `top` most likely tokens, with up to `longest` tokens each, given the
    first `length` tokens of the text.
    """

    queries: int
    top: int
    longest: int
    length: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("queries", "top", "longest", "length"):
            if getattr(self, name) < 1:
                raise OptionMismatch(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.seed < 0:
            raise OptionMismatch(f"seed is {self.seed}; it must be 0 or more")

    def uniforms(self, text: str) -> NDArray[np.float64]:
        """The random numbers of a text, [queries, longest]."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        rng = np.random.default_rng([self.seed, int.from_bytes(digest[:16], "little")])
        return rng.random((self.queries, self.longest))


class Sampler:
    """The model of a folder on a device."""

    def __init__(self, folder: Path, device: str) -> None:
        self._device = torch.device(device)
        self._model = QueryWriter.from_pretrained(folder).to(self._device).eval()
        config: Any = self._model.backbone.config
        self._room = _positions(config)
        auto: Any = AutoTokenizer
        try:
            with quiet():
                self._tokenizer = auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # each tokenizer fails in its own way
            raise MissingModelFile(
                f"{folder} has no readable tokenizer: {str(error)[:200]}",
                "copy the model's tokenizer files to that folder",
            ) from error
        end = getattr(config, "eos_token_id", None)
        self._ends = torch.tensor(end if isinstance(end, list) else [-1 if end is None else end])
        pad = getattr(config, "pad_token_id", None)
        self._never = [i for i in {pad, self._model.first_id} if i is not None and i not in self._ends]

    @torch.inference_mode()
    def write(self, texts: Sequence[str], how: Sampling) -> list[list[str]]:
        """The queries of each text; duplicates are kept, since BM25 counts them."""
        if self._room is not None and max(how.length, how.longest) > self._room:
            raise OptionMismatch(
                f"the model reads {self._room} tokens, but length is {how.length} and longest {how.longest}",
                f"set both to at most {self._room}",
            )
        model: Any = self._model.backbone
        given = self._tokenizer(
            [clean(text) for text in texts],
            truncation=True,
            max_length=how.length,
            padding=True,
            return_tensors="pt",
        )
        ids, mask = (given[name].to(self._device) for name in ("input_ids", "attention_mask"))
        uniforms = torch.from_numpy(np.concatenate([how.uniforms(text) for text in texts])).to(self._device)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._device.type == "cuda"):
            states = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            written = self._draw(
                states.repeat_interleave(how.queries, 0),
                mask.repeat_interleave(how.queries, 0),
                uniforms,
                how,
            )
        decoded = self._tokenizer.batch_decode(written.tolist(), skip_special_tokens=True)
        return [
            [query.strip() for query in decoded[i * how.queries : (i + 1) * how.queries]]
            for i in range(len(texts))
        ]

    def _draw(
        self, states: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor, how: Sampling
    ) -> torch.Tensor:
        """Sample token by token, [texts × queries, tokens]; finished queries are padded with end tokens."""
        model: Any = self._model.backbone
        ends = self._ends.to(self._device)
        last = torch.full((len(states), 1), self._model.first_id, device=self._device)
        done = torch.zeros(len(states), dtype=torch.bool, device=self._device)
        written, past = [], None
        for place in range(how.longest):
            found = model(
                encoder_outputs=(states,), attention_mask=mask,
                decoder_input_ids=last, past_key_values=past, use_cache=True,
            )  # fmt: skip
            past = found.past_key_values
            logits = found.logits[:, -1].double()
            logits[:, self._never] = float("-inf")
            best = logits.topk(min(how.top, logits.shape[1]))
            below = best.values.softmax(-1).cumsum(-1) < uniforms[:, place, None]
            chosen = below.sum(-1, keepdim=True).clamp_max(best.indices.shape[1] - 1)
            token = best.indices.gather(1, chosen)[:, 0]
            token = torch.where(done, ends[0].clamp_min(0), token)
            written.append(token)
            done = done | torch.isin(token, ends)
            if bool(done.all()):
                break
            last = token[:, None]
        return torch.stack(written, dim=1)


def _positions(config: Any) -> int | None:
    """How many tokens the model can read; None if there is no limit."""
    parts = [config, getattr(config, "encoder", None), getattr(config, "decoder", None)]
    found = [getattr(part, "max_position_embeddings", None) for part in parts if part is not None]
    return min((int(size) for size in found if size), default=None)


def fingerprint(folder: Path, how: Sampling) -> str:
    """A digest of everything that determines the output: the model, its tokenizer and the sampling."""
    digest = hashlib.sha256(json.dumps(asdict(how), sort_keys=True).encode())
    for path in sorted((*folder.glob("*.json"), *folder.glob("*.model"))):  # .model: sentencepiece
        if path.name not in ("recipe.json", "training.json"):
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as weights:  # in order of names, since the order in files may differ
            for name in sorted(weights.keys()):
                content = weights.get_tensor(name).contiguous().flatten().view(torch.uint8)
                digest.update(name.encode() + content.numpy().tobytes())
    return digest.hexdigest()[:32]
