"""CoMap's gates at their boundaries, and the refinement head."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comap.agents.gates import action_gate, agreement, world_state_gate
from comap.agents.refinement import RefinementHead
from comap.errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from comap.facts import Delta, Fact


def changes(*names: str) -> Delta:
    """Return the change in which ``+a`` appears and ``-b`` goes."""
    facts: dict[str, set[Fact]] = {"+": set(), "-": set()}
    for name in names:
        facts[name[0]].add(("is", name[1:]))
    return Delta(frozenset(facts["+"]), frozenset(facts["-"]))


@pytest.mark.parametrize(
    ("p", "q", "same", "taken"),
    [
        (0.51, 0.61, False, True),
        (1.0, 1.0, False, True),
        (0.5, 1.0, False, False),  # p = tau_p exactly
        (1.0, 0.6, False, False),  # q = tau_q exactly
        (1.0, 1.0, True, False),  # canonically the same action
        (math.nextafter(0.5, 1), math.nextafter(0.6, 1), False, True),
        (0.0, 0.0, False, False),
        (math.nan, 1.0, False, False),
        (1.0, math.nan, False, False),
    ],
)
def test_the_action_gate(p: float, q: float, same: bool, taken: bool) -> None:
    assert action_gate(p, q, same) is taken


def test_thresholds_of_the_action_gate_can_be_set() -> None:
    assert action_gate(0.5, 0.6, False, tau_p=0.49, tau_q=0.59)
    assert not action_gate(0.9, 0.9, False, tau_p=0.9)


@pytest.mark.parametrize(
    ("student", "teacher", "value"),
    [
        (("+a", "-b"), ("+a", "-b"), 1.0),
        ((), (), 1.0),
        (("+a",), (), 0.0),
        ((), ("-a",), 0.0),
        (("+a",), ("-a",), 0.0),  # the sign counts
        (("+a", "+b", "-c"), ("+a", "-c", "-d", "+e"), 4 / 7),
    ],
)
def test_agreement_is_the_f1_of_signed_changes(
    student: tuple[str, ...], teacher: tuple[str, ...], value: float
) -> None:
    assert agreement(changes(*student), changes(*teacher)) == pytest.approx(value)
    assert agreement(changes(*teacher), changes(*student)) == pytest.approx(value)


@pytest.mark.parametrize("parsed", [(False, True), (True, False), (False, False)])
def test_what_cannot_be_read_agrees_with_nothing(parsed: tuple[bool, bool]) -> None:
    same = changes("+a")
    for delta in (same, Delta()):
        gate = world_state_gate(delta, delta, student_parsed=parsed[0], teacher_parsed=parsed[1])
        assert gate == (0.0, False)


def test_the_world_state_gate_is_open_at_its_threshold() -> None:
    # 3 shared of 5 and 5: r = 0.6 exactly
    student = changes("+a", "+b", "-c", "+d", "+e")
    teacher = changes("+a", "+b", "-c", "-d", "-e")
    assert world_state_gate(student, teacher) == (0.6, True)
    assert not world_state_gate(student, teacher, tau=0.61).open
    assert world_state_gate(student, changes(), tau=0.0).open


def test_a_head_of_zeros_cannot_tell() -> None:
    head = RefinementHead.zeros(4)
    assert head.size == 4
    assert head.probability((1e6, -3.0, 0.0, 2.0)) == 0.5
    assert not action_gate(head.probability((1.0,) * 4), 1.0, False)


def test_a_head_is_a_sigmoid() -> None:
    head = RefinementHead(np.array([1.0, -2.0], np.float32), 0.5)
    assert head.probability((2.0, 0.25)) == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert head.probability((0.25, 2.0)) == pytest.approx(1 / (1 + math.exp(3.25)))
    assert head.probability((1e6, 0.0)) == 1.0 and head.probability((-1e6, 0.0)) == 0.0


def test_a_head_comes_back_from_its_file(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    head = RefinementHead(np.array([0.1, -0.7, 3.0], np.float32), -0.25)
    path = head.save(tmp_path / "new" / "head.safetensors")
    again = RefinementHead.load(path)
    assert again.bias == head.bias and (again.weight == head.weight).all()
    state = (0.3, 0.2, -0.1)
    assert again.probability(state) == head.probability(state)


def test_files_that_are_no_head_are_told(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    with pytest.raises(DataNotFound, match="found no file"):
        RefinementHead.load(tmp_path / "none")
    path = tmp_path / "head"
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(DataCorrupt, match="expected a refinement head"):
        RefinementHead.load(path)
    for tensors in (
        {"other": np.zeros(2, np.float32)},
        {"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(1, np.float32)},
        {"weight": np.full(2, np.nan, np.float32), "bias": np.zeros(1, np.float32)},
        {"weight": np.zeros(2, np.float32), "bias": np.zeros(0, np.float32)},
    ):
        numpy_files.save_file(tensors, path)
        with pytest.raises(DataCorrupt, match="expected a refinement head"):
            RefinementHead.load(path)


def test_hidden_states_that_do_not_fit_are_told() -> None:
    head = RefinementHead.zeros(3)
    with pytest.raises(LanguageModelError, match=r"3 numbers .* found 2"):
        head.probability((1.0, 2.0))
    head = RefinementHead(np.ones(2, np.float32))
    with pytest.raises(LanguageModelError, match="finite"):
        head.probability((math.inf, -math.inf))
    wrongs: tuple[Any, ...] = (np.zeros((2, 2)), np.zeros(0), np.array([math.inf]))
    for wrong in wrongs:
        with pytest.raises(OptionError):
            RefinementHead(wrong)
    with pytest.raises(OptionError):
        RefinementHead(np.zeros(2, np.float32), math.nan)
