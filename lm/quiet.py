"""Keeping the transformers library's progress bars out of other programs' output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_bars"]


@contextmanager
def without_bars() -> Iterator[None]:
    """Show no progress bars of the transformers library, and bring them back afterwards.

    Example:
        >>> with without_bars():  # doctest: +SKIP
        ...     model = AutoModelForCausalLM.from_pretrained(folder)
    """
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
