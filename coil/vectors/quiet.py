"""Suppresses the output of Hugging Face and ONNX tools while a model is read, written or traced."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """Hide log messages, warnings and progress bars of other libraries; the result is checked instead."""
    from transformers.utils import logging as hugging_face

    remarks: Any = hugging_face

    loggers = [logging.getLogger(name) for name in ("onnxruntime", "torch.onnx", "transformers")]
    before = [logger.level for logger in loggers]
    bars = remarks.is_progress_bar_enabled()
    remarks.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if bars:
            remarks.enable_progress_bar()
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
