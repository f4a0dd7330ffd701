"""Where in the sequences of a micro-batch each loss is; plain numbers, before any tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .examples import Example

__all__ = ["Places"]


@dataclass(slots=True)
class Places:
    """The sequences of a micro-batch, and where in them each loss is.

    Every place begins with the number of a sequence and a position in it, whose hidden state predicts
    the token after it.

    A row's prompt is read once: what it is distilled on follows its reply in the same sequence, as a
    second branch of the prompt, which does not see the first (see `branched`).

    Args:
        head: Whether the refinement probability is a head's, at the prompt's last token; else it is
            read from the two words of the decision (METHODS.md 1.3).
        shared: Whether prompts are shared so; else the two are sequences of their own, for models
            whose attention takes no mask.

    Attributes:
        sequences: What the trained model reads.
        branches: For each sequence how long its prompt and its first branch are; the rest is a second.
        nll: Places with the token that follows and its weight.
        labels: Places with the label and its weight, where the head tells.
        words: Places with the two words' tokens, the label and its weight, where words tell.
        compared: Places with a weight, where student and teacher are compared.
        teacher: What the teacher reads.
        teacher_at: Places in those, one for each of `compared`.

    Example:
        >>> places = Places(head=True)
        >>> places.add(Example((1, 2), (3, 4), (False, True), label=1.0, label_weight=0.5), ())
        >>> places.nll, places.labels
        ([(0, 2, 4, 1.0)], [(0, 1, 1.0, 0.5)])
    """

    head: bool
    shared: bool = True
    sequences: list[tuple[int, ...]] = field(default_factory=list)
    branches: list[tuple[int, int]] = field(default_factory=list)
    nll: list[tuple[int, int, int, float]] = field(default_factory=list)
    labels: list[tuple[int, int, float, float]] = field(default_factory=list)
    words: list[tuple[int, int, int, int, float, float]] = field(default_factory=list)
    compared: list[tuple[int, int, float]] = field(default_factory=list)
    teacher: list[tuple[int, ...]] = field(default_factory=list)
    teacher_at: list[tuple[int, int]] = field(default_factory=list)

    def add(self, row: Example, continuation: Sequence[int]) -> None:
        """Add a row, and the tokens that it is distilled on.

        A row whose weights are all zero adds nothing. Where it is distilled on its own reply, both
        losses are of one sequence.
        """
        at, start = len(self.sequences), len(row.prompt) - 1
        own = bool(row.weight) or row.label is not None
        if own:
            self._read(row.prompt, row.answer)
            self._add_own(row, at, start)
        if not row.distill_weight or not continuation:
            return
        tokens, first = tuple(continuation), start + 1
        if own and tokens != row.answer and self.shared:
            self.sequences[at] += tokens
            first = len(row.prompt) + len(row.answer)
        elif not (own and tokens == row.answer):
            at = len(self.sequences)
            self._read(row.prompt, tokens)
        share = row.distill_weight / len(tokens)
        places = [start, *range(first, first + len(tokens) - 1)]
        self.compared += [(at, place, share) for place in places]
        begin, number = len(row.teacher) - 1, len(self.teacher)
        self.teacher_at += [(number, begin + place) for place in range(len(tokens))]
        self.teacher.append(row.teacher + tokens)

    def _read(self, prompt: tuple[int, ...], reply: tuple[int, ...]) -> None:
        self.sequences.append(prompt + reply)
        self.branches.append((len(prompt), len(reply)))

    def _add_own(self, row: Example, at: int, start: int) -> None:
        scored = [place for place, flag in enumerate(row.scored) if flag]
        if row.weight:
            share = row.weight / max(len(scored), 1)
            self.nll += [(at, start + place, row.answer[place], share) for place in scored]
        if row.label is None:
            return
        if self.head:
            self.labels.append((at, start, row.label, row.label_weight))
        elif row.decision is not None:
            place, one, other = row.decision
            self.words.append((at, start + place, one, other, row.label, row.label_weight))
