"""`SuffixLabel`: what suffix rollouts say of one draft (METHODS.md 1.0.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import DataCorrupt

__all__ = ["SuffixLabel"]

_SOURCES = ("env", "wm", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixLabel:
    """Whether a draft in an expert's state should be revised, and what the reflection is shown.

    Attributes:
        task: The task's id.
        step: Number of actions before the draft.
        prefix: Those actions.
        draft_action: The drafted action.
        draft_response: The policy's reply with the draft in it.
        expert_action: What the expert did.
        succ_draft: Share of the rollouts after the draft that solved the task, 0 to 1; None where none
            were needed, as the draft means the expert's action. So with the next three.
        succ_exp: The same after the expert's action.
        ret_draft: Mean return after the draft, 0 to 1.
        ret_exp: The same after the expert's action.
        y: 1 where the draft should be revised, else 0.
        target: The final action to learn: the expert's where ``y`` is 1, else the draft.
        future: What the reflection is shown as following the draft.
        future_source: Where that is from: ``"env"``, ``"wm"`` or ``"none"``.

    Example:
        >>> label = SuffixLabel(
        ...     task="a", step=0, prefix=(), draft_action="look", draft_response="Action: look",
        ...     expert_action="look", succ_draft=None, succ_exp=None, ret_draft=None, ret_exp=None,
        ...     y=0, target="look", future="A room.", future_source="env")
        >>> label.kind, SuffixLabel.from_json(label.to_json()) == label
        ('expert_draft', True)
    """

    task: str
    step: int
    prefix: tuple[str, ...]
    draft_action: str
    draft_response: str
    expert_action: str
    succ_draft: float | None
    succ_exp: float | None
    ret_draft: float | None
    ret_exp: float | None
    y: int
    target: str
    future: str
    future_source: str

    @property
    def kind(self) -> str:
        """Its kind: ``"revise_positive"``, ``"expert_draft"`` or ``"keep_draft"`` (CoMap, Fig. 7)."""
        if self.y:
            return "revise_positive"
        return "expert_draft" if self.succ_draft is None else "keep_draft"

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        told = {part.name: getattr(self, part.name) for part in fields(self)}
        return told | {"prefix": list(self.prefix)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SuffixLabel:
        """Read what `to_json` returned.

        Raises:
            DataCorrupt: It lacks a field, or has one that cannot be.
        """
        try:
            label = cls(**{**data, "prefix": tuple(data["prefix"])})
        except (TypeError, KeyError) as error:
            raise DataCorrupt(f"expected a label of a draft, found {data!r:.200}") from error
        wrong = [name for name, sound in _checks(label).items() if not sound]
        if wrong:
            raise DataCorrupt(
                f"expected a label of a draft, found one whose {', '.join(wrong)} cannot be: "
                f"{data!r:.200}"
            )
        return label


def _checks(label: SuffixLabel) -> dict[str, bool]:
    """Return for each field whether it can be so."""
    texts = ("task", "draft_action", "draft_response", "expert_action", "target", "future")
    shares = ("succ_draft", "succ_exp", "ret_draft", "ret_exp")
    checks = {name: isinstance(getattr(label, name), str) for name in texts}
    checks |= {name: _is_share(getattr(label, name)) for name in shares}
    checks["prefix"] = all(isinstance(action, str) for action in label.prefix)
    checks["step"] = type(label.step) is int and label.step == len(label.prefix)
    checks["y"] = type(label.y) is int and label.y in (0, 1)
    return checks | {"future_source": label.future_source in _SOURCES}


def _is_share(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1
