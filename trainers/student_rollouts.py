"""What the student predicts by itself: the texts that self-distillation compares models on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataCorrupt, LanguageModelError
from ..lm import Completion, Generate, LanguageModel, Sampling
from .processes import gathered, is_first, rank, wait, world_size
from .run_folder import read_json, write_json
from .samples import Sample

__all__ = ["StudentRollouts"]


class StudentRollouts:
    """Lets the student predict, once an epoch or once in all, and keeps it (METHODS.md 1.7, step 1).

    What was predicted is written down: a training that was killed goes on with the same texts. The
    processes of a training share the work, and must all ask. A text ends with its first end token,
    unless it ran out of room; there is always one token at least (METHODS.md 1.7, step 6).

    Args:
        folder: Where predictions are kept.
        samples: The rows; those that are not distilled get no prediction.
        language_model: Gives the language model with the student's present weights.
        end: The end token.
        sampling: Temperature, top-p and most tokens; its seed, with the epoch's and the row's number,
            is that of each row.
        fresh: Whether each epoch has predictions of its own.
        adapter: The student's role.

    Example:
        >>> rollouts = StudentRollouts(Path("stage"), [], lambda: None, 0, Sampling())
        >>> Path("stage").mkdir()
        >>> rollouts(0)
        []
    """

    def __init__(
        self,
        folder: Path,
        samples: Sequence[Sample],
        language_model: Callable[[], LanguageModel],
        end: int,
        sampling: Sampling,
        *,
        fresh: bool = True,
        adapter: str = "wm",
    ):
        self._folder, self._samples, self._make = folder, samples, language_model
        self._end, self._sampling, self._fresh, self._adapter = end, sampling, fresh, adapter

    def __call__(self, epoch: int) -> list[tuple[int, ...]]:
        """Return the tokens that the student predicted for each row, in this epoch.

        Raises:
            LanguageModelError: The student failed at one of them.
            DataCorrupt: What was written down is not of these rows.
        """
        epoch = epoch if self._fresh else 0
        path = self._folder / f"predictions-{epoch}.json"
        if not gathered([path.exists()])[0]:  # what the first process sees, for all
            found = self._predict(epoch)
            if is_first():
                write_json(path, found)
        wait()
        return self._read(path)

    def _read(self, path: Path) -> list[tuple[int, ...]]:
        try:
            rows = read_json(path)
            wanted = [bool(sample.distill_weight) for sample in self._samples]
            if not isinstance(rows, list) or [bool(row) for row in rows] != wanted:
                raise ValueError(f"expected tokens for {sum(wanted)} of {len(wanted)} rows")
            if not all(type(token) is int and token >= 0 for row in rows for token in row):
                raise ValueError("there is something that is no token")
        except (ValueError, TypeError, OSError) as error:
            raise DataCorrupt(
                f"expected the student's predictions in {path}, found something else ({error}); "
                "remove that file"
            ) from error
        return [tuple(row) for row in rows]

    def _predict(self, epoch: int) -> list[list[int]]:
        """Return the tokens of each row; processes take turns, and all learn of a failure."""
        wanted = [number for number, row in enumerate(self._samples) if row.distill_weight]
        mine = wanted[rank() :: world_size()]
        requests = [self._request(number, epoch) for number in mine]
        said = self._make().generate(requests) if mine else []
        pairs = [(number, self._tokens(one)) for number, one in zip(mine, said, strict=True)]
        known: dict[int, list[int] | str] = dict(gathered(pairs))
        found: list[list[int]] = [[] for _ in self._samples]
        for number, tokens in sorted(known.items()):
            if isinstance(tokens, str):
                raise LanguageModelError(f"the student cannot predict row {number}: {tokens}")
            found[number] = tokens
        return found

    def _request(self, number: int, epoch: int) -> Generate:
        sample, sampling = self._samples[number], self._sampling
        said = f"{sampling.seed}\n{epoch}\n{number}"
        seed = int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "big") >> 1
        told = Sampling(sampling.max_new_tokens, sampling.temperature, sampling.top_p, (), seed)
        return Generate(sample.messages, told, adapter=self._adapter, purpose="student rollout")

    def _tokens(self, said: Completion | LanguageModelError) -> list[int] | str:
        """Return the tokens of a prediction, or what went wrong."""
        if isinstance(said, LanguageModelError):
            return str(said)
        if said.token_ids is None:
            return "the language model does not tell its tokens; use one of kind 'hf'"
        tokens: list[Any] = [int(token) for token in said.token_ids]
        if self._end in tokens:
            return tokens[: tokens.index(self._end) + 1]
        return [*tokens, self._end] if said.finish == "stop" or not tokens else tokens
