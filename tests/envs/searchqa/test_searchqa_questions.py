"""Questions in files: FlashRAG's form, verl's, seven data sets by name, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.envs.searchqa.questions import DATASETS, read_questions, split_by_id
from comap.errors import DataCorrupt, DataNotFound, OptionError, TaskNotFound


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(name: str, question: str = "who wrote Emma", **fields: object) -> dict[str, object]:
    return {"id": name, "question": question, "golden_answers": ["Jane Austen"], **fields}


def test_flashrags_form(tmp_path: Path) -> None:
    hops = {
        "decomposition": [
            {"question": "Emma >> author", "answer": "Jane Austen"},
            {"question": "#1 >> birthplace", "answer": "Steventon"},
        ],
        "supporting_ids": ["c", "a"],
    }
    path = write(
        tmp_path / "q.jsonl",
        row("1", " who  wrote Emma"),
        row("2", "Who?", metadata={"supporting_titles": ["Emma (novel)"], "evidences": None}),
        row("3", metadata=hops),
        row("4", metadata=None),
    )
    first, second, third, fourth = read_questions(path)
    assert (first.text, first.golden) == ("who wrote Emma?", ("Jane Austen",))
    assert first.hops == first.titles == ()
    assert second.text == "Who?" and second.titles == ("Emma (novel)",)
    assert [hop.question for hop in third.hops] == ["Emma author", "Jane Austen birthplace"]
    assert third.support == ("c", "a") and fourth.hops == ()


def test_verls_rows(tmp_path: Path) -> None:
    reward = {"style": "rule", "ground_truth": {"target": ["Ada", "A. L."]}}
    nq_row = {
        "data_source": "nq",
        "reward_model": reward,
        "extra_info": {"index": 7},
        "question": "who",
    }
    bare_row = {
        "reward_model": {"ground_truth": {"target": "Ada"}},
        "env_kwargs": {"question": "who?"},
    }
    questions = read_questions(write(tmp_path / "q.jsonl", nq_row, bare_row))
    assert [(q.id, q.text, q.golden) for q in questions] == [
        ("nq-7", "who?", ("Ada", "A. L.")),
        ("row-2", "who?", ("Ada",)),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        3,
        {},
        row(""),
        row("x", ""),
        {"id": "x", "question": "y", "golden_answers": []},
        {"id": "x", "question": "y", "golden_answers": "z"},
        {"id": "x", "question": "y", "golden_answers": [3]},
        {"id": True, "question": "y", "golden_answers": ["z"]},
        row("x", metadata={"decomposition": [3]}),
        row("x", question="\ud800"),
        row("good"),
    ],
)
def test_what_is_no_question(bad: object, tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="line 2 of"):
        read_questions(write(tmp_path / "q.jsonl", row("good"), bad))


def make(index: Path, questions: Path, **options: object):
    env = gym.make("comap/SearchQA-v0", data_dir=index, questions=questions, **options)
    return env.unwrapped


def test_a_file_is_played_whole_or_divided(index: Path, tmp_path: Path) -> None:
    rows = [row(f"test_{number}") for number in range(200)]
    path = write(tmp_path / "q.jsonl", *rows)
    env = make(index, path)
    assert env.tasks.split == "all" and set(env.tasks.ids) == {f"test_{n}" for n in range(200)}
    parts = [make(index, path, split=split).tasks.ids for split in ("train", "dev", "test")]
    assert sorted(sum(parts, ())) == sorted(env.tasks.ids) and 140 < len(parts[0]) < 180
    test = make(index, path, split="test", retriever="fts5")
    _, info = test.reset(options={"task": parts[0][0]})
    assert info["task"] == parts[0][0] and info["split"] == "train" == split_by_id(parts[0][0])
    with pytest.raises(TaskNotFound):
        test.reset(options={"task": "generated/1hop/0"})


def test_data_sets_by_name(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "questions"
    for name, splits in DATASETS.items():
        for split in splits:
            file = f"{name}/{split}.jsonl" if name == "musique" else f"{name}_{split}.jsonl"
            write(folder / file, row(f"{split}_0"), row(f"{split}_1"))
    assert len(DATASETS) == 7
    task_ids = [f"{name}/train_{number}" for name in ("hotpotqa", "nq") for number in (0, 1)]
    assert list(make(index, folder).tasks.ids) == task_ids
    assert len(make(index, folder, split="test").tasks.ids) == 14
    two_datasets_env = make(index, folder, split="test", dataset="musique, bamboogle")
    task_ids = [
        f"{name}_{number}" for name in ("bamboogle/test", "musique/dev") for number in (0, 1)
    ]
    assert list(two_datasets_env.tasks.ids) == task_ids
    _, info = two_datasets_env.reset(options={"task": "musique/dev_1"})
    assert info["split"] == "dev"
    assert len(make(index, folder, split="all", dataset=["nq"]).tasks.ids) == 4
    with pytest.raises(OptionError, match="did you mean 'musique'"):
        make(index, folder, dataset="musik")
    with pytest.raises(DataNotFound, match="popqa"):
        make(index, folder, split="train", dataset="popqa")
    with pytest.raises(DataNotFound, match="FlashRAG"):
        make(index, tmp_path / "index", split="test")
    with pytest.raises(DataNotFound, match="found nothing"):
        make(index, tmp_path / "nowhere")


def test_real_questions_are_read(shared) -> None:
    folder = shared.file("questions")
    counts = {path.stem: len(read_questions(path)) for path in sorted(folder.iterdir())}
    assert counts["bamboogle_test"] == 125 and len(counts) == 7
    assert {count for name, count in counts.items() if name != "bamboogle_test"} == {1000}
    for name in ("hotpotqa", "2wikimultihopqa", "musique"):
        questions = read_questions(shared.file(f"{name}_with_context.jsonl"))
        assert all(question.support for question in questions)
        assert all(len(question.hops) > 1 for question in questions) is (name == "musique")


def test_all_seven_are_played_on_real_passages(shared, mini: Path) -> None:
    env = make(mini, shared.file("questions"), split="test")
    assert len(env.tasks.ids) == 6125
    for name in DATASETS:
        task = next(task_id for task_id in env.tasks.ids if task_id.startswith(f"{name}/"))
        env.reset(options={"task": task})
        observation, _, _, _, info = env.step(env.expert_action())
        assert observation.startswith("\n\n<information>Doc 1(Title: ")
        assert len(info["retrieved"]) == 3
        _, reward, terminated, _, info = env.step(env.expert_action())
        assert (reward, terminated, info["success"]) == (1.0, True, True)
