"""Samples: what they refuse, how they are written and counted, and how their weights add up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.errors import DataCorrupt, OptionError
from comap.lm import Message
from comap.trainers.policy_samples import balance_weights
from comap.trainers.sample_counts import composition, count_samples
from comap.trainers.samples import Sample

ASKED = (Message("system", "Act."), Message("user", "It is dark."))


def sample(**fields: Any) -> Sample:
    return Sample(
        **{"kind": "anchor", "messages": ASKED, "reply": (("Action: look", True),), **fields}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "Not A Kind"},
        {"kind": ""},
        {"kind": 3},
        {"messages": ()},
        {"messages": list(ASKED)},
        {"messages": (("user", "a tuple that is no Message"),)},
        {"messages": (Message("assistant", "I speak last."),)},
        {"messages": (Message("tool", "Who?"), Message("user", "?"))},
        {"messages": (Message("user", 3),)},
        {"reply": ()},
        {"reply": ("text",)},
        {"reply": (("text", 1),)},
        {"reply": (("text",),)},
        {"reply": [("text", True)]},
        {"weight": -0.5},
        {"weight": float("nan")},
        {"weight": True},
        {"weight": "1"},
        {"distill_weight": float("inf")},
        {"distill_weight": 0.5},
        {"teacher": (Message("system", "No question."),)},
        {"label": 2},
        {"label": float("nan")},
        {"label_weight": 0.1},
        {"label": 1.0, "label_weight": -0.1},
        {"task": None},
        {"step": -1},
        {"step": 1.0},
    ],
)
def test_what_is_no_sample_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"expected .* found"):
        sample(**fields)


def test_an_empty_reply_is_one_segment_without_text() -> None:
    assert sample(reply=(("", True),)).text == ""


def test_text_and_scored_text() -> None:
    parts = (("Reflection: Hm.\nDecision:", False), (" KEEP", True), ("\nFinal Action:", False))
    made = sample(reply=(*parts, (" look", True)))
    assert made.text == "Reflection: Hm.\nDecision: KEEP\nFinal Action: look"
    assert made.scored == " KEEP look"


TEXTS = st.text(max_size=40)
WEIGHTS = st.floats(0, 1e6)
MESSAGES = st.tuples(
    st.builds(Message, st.just("system"), TEXTS), st.builds(Message, st.just("user"), TEXTS)
)


@settings(max_examples=60, deadline=None)
@given(
    messages=MESSAGES,
    reply=st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=4).map(tuple),
    weight=WEIGHTS,
    label=st.floats(0, 1),
    label_weight=WEIGHTS,
    teacher=MESSAGES,
    distill_weight=WEIGHTS,
    task=TEXTS,
    step=st.integers(0, 10**6),
)
def test_what_is_written_is_read_again(**fields: Any) -> None:
    made = sample(**fields)
    assert Sample.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": "?", "more": 1}]},
        {"messages": 3},
        {"messages": ["user"]},
        {"reply": [["text", True, 1]]},
        {"reply": None},
        {"weight": "heavy"},
        {"weight": float("nan")},
        {"unknown": 1},
    ],
)
def test_what_is_corrupt_is_told(change: dict[str, Any]) -> None:
    with pytest.raises(DataCorrupt, match="expected a sample"):
        Sample.from_json(sample().to_json() | change)
    for nothing in (None, [], "text", {}):
        with pytest.raises(DataCorrupt, match="expected a sample"):
            Sample.from_json(nothing)  # type: ignore[arg-type]


def test_scaling_scales_all_three_terms() -> None:
    made = sample(weight=0.5, label=1.0, label_weight=0.01, teacher=ASKED, distill_weight=0.25)
    scaled = made.scaled(4)
    assert (scaled.weight, scaled.label_weight, scaled.distill_weight) == (2.0, 0.04, 1.0)
    assert scaled.label == 1.0


@settings(max_examples=40, deadline=None)
@given(
    anchors=st.lists(st.floats(0, 10), min_size=1, max_size=8),
    reflections=st.lists(st.floats(0, 10), min_size=1, max_size=8),
    alpha=st.floats(0, 3),
)
def test_balanced_weights_estimate_the_sum_of_two_means(
    anchors: list[float], reflections: list[float], alpha: float
) -> None:
    one = [sample() for _ in anchors]
    other = [sample(kind="keep_draft", weight=alpha) for _ in reflections]
    rows = balance_weights(one, other)
    losses = [*anchors, *reflections]
    mean = sum(row.weight * loss for row, loss in zip(rows, losses, strict=True)) / len(rows)
    wanted = sum(anchors) / len(anchors) + alpha * sum(reflections) / len(reflections)
    assert mean == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_balancing_by_hand() -> None:
    one, other = sample(), sample(kind="keep_draft", weight=2.0, label=1.0, label_weight=0.5)
    rows = balance_weights([one], [other, other, other])
    assert [row.weight for row in rows] == [4.0] + [pytest.approx(8 / 3)] * 3
    assert rows[1].label_weight == pytest.approx(2 / 3)
    assert balance_weights([one, one], []) == [one, one]
    assert balance_weights([], [other]) == [other]
    assert balance_weights([], []) == []


def test_counts_and_the_composition_of_figure_7() -> None:
    kinds = ["warmup", "anchor", "anchor", "expert_draft", "revise_positive", "keep_draft"]
    kinds += ["keep_draft", "hq_reflect", "own_anchor"]
    policy = [sample(kind=kind) for kind in kinds]
    world = [sample(kind=kind) for kind in ("warmup", "world_model", "world_model", "reading")]
    assert count_samples(policy) == {
        "anchor": 2,
        "expert_draft": 1,
        "hq_reflect": 1,
        "keep_draft": 2,
        "own_anchor": 1,
        "revise_positive": 1,
        "warmup": 1,
    }
    assert composition(policy, world) == {
        "policy": {"warm-up": 3, "expert-draft": 1, "revise+": 1, "keep": 2, "HQ": 1},
        "world model": {"warm-up": 1, "self-distillation": 2},
    }
