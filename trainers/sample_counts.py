"""How many samples of which kind there are (CoMap, Figure 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .samples import Sample

__all__ = ["composition", "count_samples"]

_POLICY = {
    "warm-up": ("warmup", "anchor"),
    "expert-draft": ("expert_draft",),
    "revise+": ("revise_positive",),
    "keep": ("keep_draft",),
    "HQ": ("hq_reflect",),
}
_WORLD_MODEL = {"warm-up": ("warmup",), "self-distillation": ("world_model",)}


def count_samples(samples: Iterable[Sample]) -> dict[str, int]:
    """Return the number of samples of each kind that occurs, by the kinds' names in order.

    Example:
        >>> from comap.lm import Message
        >>> asked, said = (Message("user", "?"),), (("!", True),)
        >>> kinds = ("keep_draft", "anchor", "keep_draft")
        >>> count_samples(Sample(kind=kind, messages=asked, reply=said) for kind in kinds)
        {'anchor': 1, 'keep_draft': 2}
    """
    return dict(sorted(Counter(sample.kind for sample in samples).items()))


def composition(
    policy: Iterable[Sample], world_model: Iterable[Sample]
) -> dict[str, dict[str, int]]:
    """Return what the two models learned from, by the categories of Figure 7 (METHODS.md 4, C-F7).

    Samples of other kinds (those of the preset ``authors_code`` alone) are in none of them. Anchors are
    demonstrations, so they count as warm-up.

    Args:
        policy: All that the policy learned from.
        world_model: All that the world model learned from.

    Example:
        >>> composition((), ())["world model"]
        {'warm-up': 0, 'self-distillation': 0}
    """
    return {
        "policy": _by_category(policy, _POLICY),
        "world model": _by_category(world_model, _WORLD_MODEL),
    }


def _by_category(
    samples: Iterable[Sample], categories: Mapping[str, tuple[str, ...]]
) -> dict[str, int]:
    counts = count_samples(samples)
    return {name: sum(counts.get(kind, 0) for kind in kinds) for name, kinds in categories.items()}
