from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comap.errors import DataCorrupt, LanguageModelError
from comap.lm import Completion, Generate, Message, Sampling
from comap.trainers.samples import Sample
from comap.trainers.student_rollouts import StudentRollouts

END = 7
ROWS = [
    Sample(
        kind="world_model",
        messages=(Message("user", f"row {number}"),),
        reply=(("It is dark.", True),),
        teacher=(Message("user", "privileged"),) if eta else (),
        distill_weight=eta,
    )
    for number, eta in enumerate((0.5, 0.0, 0.5, 0.5))
]


class Student:
    """Says prepared tokens, and keeps what it was asked."""

    def __init__(self, *said: Any):
        self.said, self.asked = list(said), []  # type: ignore[var-annotated]

    def generate(self, requests: list[Generate]) -> list[Any]:
        self.asked += requests
        return self.said[: len(requests)]


def done(*tokens: int, finish: str = "stop") -> Completion:
    return Completion("", tokens, finish=finish)


def rollouts(folder: Path, student: Any, **told: Any) -> StudentRollouts:
    sampling = Sampling(5, 1.0, 0.9, (), 3)
    return StudentRollouts(folder, ROWS, lambda: student, END, sampling, **told)


def test_each_row_ends_at_its_first_end_token_or_where_there_was_no_room(tmp_path: Path) -> None:
    student = Student(done(1, 2, END, 9, END), done(4, 5, finish="length"), done(6))
    assert rollouts(tmp_path, student)(0) == [(1, 2, END), (), (4, 5), (6, END)]


def test_a_row_always_has_a_token(tmp_path: Path) -> None:
    student = Student(done(), done(END), done(finish="length"))
    assert rollouts(tmp_path, student)(0) == [(END,), (), (END,), (END,)]


def test_the_student_is_asked_for_what_is_distilled_with_a_seed_of_its_own(tmp_path: Path) -> None:
    student = Student(*[done(1)] * 3)
    rollouts(tmp_path, student)(0)
    rollouts(tmp_path, student)(1)
    assert [one.messages for one in student.asked[:3]] == [ROWS[i].messages for i in (0, 2, 3)]
    assert {one.adapter for one in student.asked} == {"wm"}
    seeds = [one.sampling.seed for one in student.asked]
    assert len(set(seeds)) == 6, "each row, each epoch"
    assert {(one.sampling.temperature, one.sampling.top_p) for one in student.asked} == {(1.0, 0.9)}
    assert all("privileged" not in m.content for one in student.asked for m in one.messages)


def test_what_was_predicted_is_kept(tmp_path: Path) -> None:
    first = rollouts(tmp_path, Student(*[done(1)] * 3))
    found = first(0)
    silent = Student()
    assert rollouts(tmp_path, silent)(0) == found and not silent.asked
    student = Student(*[done(2)] * 3)
    assert rollouts(tmp_path, student, fresh=False)(1) == found, "once in all"
    assert not student.asked
    assert rollouts(tmp_path, student)(1) != found


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[[1]]", "[[1],[2],[3],[4]]", "[[1],[],[],[4]]", '[[1],[],["2"],[3]]', "[1,0,2,3]"],
)
def test_another_file_in_its_place_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "predictions-0.json").write_text(text)
    with pytest.raises(DataCorrupt, match=r"predictions-0\.json.*remove that file"):
        rollouts(tmp_path, Student())(0)


def test_negative_numbers_are_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "predictions-0.json").write_text(json.dumps([[1], [], [-3], [2]]))
    with pytest.raises(DataCorrupt, match="no token"):
        rollouts(tmp_path, Student())(0)


def test_a_failure_is_told_with_its_row_and_nothing_is_kept(tmp_path: Path) -> None:
    student = Student(done(1), LanguageModelError("too long"), done(1))
    with pytest.raises(LanguageModelError, match="row 2: too long"):
        rollouts(tmp_path, student)(0)
    assert not list(tmp_path.iterdir())
    with pytest.raises(LanguageModelError, match="does not tell its tokens"):
        rollouts(tmp_path, Student(*[Completion("x")] * 3))(0)
