"""Search-R1 and ZeroSearch from the beginning to the end, with small models on a few questions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from comap.agents.paw import PaWConfig
from comap.envs.searchqa.embedded import embedded_folder, embedded_questions
from comap.errors import DataCorrupt, LanguageModelError, OptionError
from comap.lm.chat import ChatTokenizer
from comap.lm.sft import encode_rows
from comap.trainers.demonstrations import expert_demonstrations
from comap.trainers.paw.config import PaWTraining
from comap.trainers.paw.presets import paw_preset
from comap.trainers.paw.tagged_warmup import tagged_reply, tagged_rows
from comap.trainers.paw.training import train
from comap.trainers.setup import Environments
from comap.trainers.setup_models import tiny_for_training
from comap.trajectory import read_trajectories

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

QUESTIONS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search")


@pytest.fixture(scope="module")
def env(place: Path) -> Environments:
    """A few one-hop questions, and the index of the embedded encyclopedia."""
    known = [one for name, one in embedded_questions().items() if name.startswith("1hop/")]
    lines = [
        json.dumps({"id": one.id, "question": one.text, "golden_answers": list(one.golden)})
        for one in known[:QUESTIONS]
    ]
    path = place / "questions.jsonl"
    path.write_text("\n".join(lines) + "\n")
    index = str(embedded_folder() / "index")
    return Environments(
        "comap/SearchQA-v0",
        {"questions": str(path), "data_dir": index, "topk": 1, "max_episode_steps": 4},
    )


@pytest.fixture(scope="module")
def base(place: Path) -> Path:
    return tiny_for_training(place / "base", "comap/SearchQA-v0", parameters=200_000, seed=0)


def settings(name: str, **changed: Any) -> PaWTraining:
    given: dict[str, Any] = {
        "groups": 2,
        "members": 3,
        "updates": 2,
        "warmup_tokens": 130_000,
        "warmup_batch_tokens": 640,
        "warmup_rate": 6e-3,
        "demonstrations": None,
        "simulator_warmup_tokens": 20_000,
        "train_split": "all",
        "evaluation_splits": ("all",),
        "evaluation_tasks": 2,
        "save_updates": 1,
        "temperature": 0.5,  # a model of this size errs often
    }
    return paw_preset(name, **{**given, **changed})


def lines(out: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def plain(out: Path) -> list[dict[str, Any]]:
    """The metrics, but for what the clock says."""
    return [
        {k: v for k, v in one.items() if "seconds" not in k and k != "crc32"} for one in lines(out)
    ]


@pytest.fixture(scope="module")
def zero(place: Path, env: Environments, base: Path) -> tuple[Path, list[Mapping[str, Any]]]:
    """A whole training of ZeroSearch, from scratch."""
    told: list[Mapping[str, Any]] = []
    out = place / "zero"
    given: dict[str, Any] = {"make_env": env, "device": "cpu", "simulator": "tiny"}
    train(settings("tiny_zerosearch"), model=base, out=out, tell=told.append, **given)
    return out, told


def test_a_policy_learns_the_tags_and_searches(zero: tuple[Path, list[Mapping[str, Any]]]) -> None:
    out, told = zero
    assert {"warmup", "simulator", "update", "evaluated"} <= {event["event"] for event in told}
    first, second = lines(out)
    assert first["episodes"] + first["dropped"] == 6 and first["rows"] > 0
    assert first["invalid"] < 0.5 and first["searches"] >= 3  # it was warmed up in tags
    assert (first["noise"], second["noise"]) == (0.25, pytest.approx(0.25 + 0.25 / 3))
    assert 0 <= first["noisy_searches"] <= first["searches"]
    assert first["success"] <= first["return"] <= 1
    assert (out / "simulator" / "model.safetensors").is_file()
    assert not list(out.glob("simulator.*"))


def test_evaluations_have_the_real_index(zero: tuple[Path, list[Mapping[str, Any]]]) -> None:
    out, _ = zero
    known = (embedded_folder() / "corpus.jsonl").read_text().splitlines()
    titles = {json.loads(line)["contents"].partition("\n")[0] for line in known}
    shown = 0
    for path in sorted((out / "evaluations").rglob("trajectories.jsonl")):
        for episode in read_trajectories(path):
            assert episode.fingerprint["retriever"].startswith("fts5")
            assert episode.fingerprint["reward"] == "em"
            for step in episode.steps:
                assert len(step.calls) == 1 and "noisy" not in step.notes
                if "Doc 1(Title: " in step.observation:
                    title = step.observation.partition("(Title: ")[2].partition(") ")[0]
                    shown += title in titles
    assert shown


def test_a_training_goes_on_as_if_it_had_not_stopped(
    zero: tuple[Path, list[Mapping[str, Any]]], place: Path, env: Environments, base: Path
) -> None:
    straight, _ = zero
    out = place / "stopped"
    given: dict[str, Any] = {"make_env": env, "device": "cpu", "simulator": "tiny"}
    out.mkdir()
    for name in ("model", "simulator"):  # as the first session left them
        (out / name).symlink_to(straight / name)
    train(settings("tiny_zerosearch", max_updates=1), model=base, out=out, **given)
    assert len(plain(out)) == 1
    train(settings("tiny_zerosearch"), model=base, out=out, **given)
    assert plain(out) == plain(straight)
    weights = "models/agent/model.safetensors"
    assert (out / weights).read_bytes() == (straight / weights).read_bytes()


def test_search_r1_has_rows_of_the_conversation(
    zero: tuple[Path, list[Mapping[str, Any]]],
    place: Path,
    env: Environments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from comap.trainers.paw import training

    seen: list[Any] = []
    roll_out = training.roll_out

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(roll_out(*args, **options))
        return seen[-1]

    monkeypatch.setattr(training, "roll_out", watched)
    changed: dict[str, Any] = {"warmup_tokens": 0, "groups": 4}
    config = settings(
        "tiny_search_r1", **changed, updates=1, evaluation_tasks=0, paw=True, reward="f1"
    )
    out = place / "r1"
    train(config, model=zero[0] / "model", make_env=env, out=out, device="cpu")
    (line,) = lines(out)
    assert line["wm_rows"] > 0 and "noise" not in line  # PaW's loss goes with it
    by_episode: dict[int, list[Any]] = {}
    for row in seen[0].rows:
        by_episode.setdefault(row.trajectory, []).append(row)
        assert 0 <= row.reward <= 1 and (row.episode_return == 1 or not row.success)
    longer = [rows for rows in by_episode.values() if len(rows) > 1]
    assert longer and any(row.episode_return for row in seen[0].rows)  # it knows these questions
    for rows in longer:
        for before, row in pairwise(rows):
            head = (*before.prompt_ids, *before.response_ids, *before.header_ids)
            head += (*before.observation_ids, *before.footer_ids)
            assert row.prompt_ids[: len(head)] == head


# -- the warm-up -----------------------------------------------------------------------------------


def test_demonstrations_in_tags_go_on_token_for_token(base: Path) -> None:
    from transformers import AutoTokenizer

    make = Environments("comap/SearchQA-v0", {"source": "generated", "topk": 1})
    with_hops = make("train")
    task = next(one for one in with_hops.get_wrapper_attr("tasks").ids if "3hop" in one)
    shown = list(expert_demonstrations(with_hops, [task]))
    tokenizer = AutoTokenizer.from_pretrained(base)
    chat = ChatTokenizer(tokenizer)
    for context in ("concat", "summary"):
        agent = PaWConfig(context=context, max_length=2048, draft_tokens=64)  # type: ignore[arg-type]
        rows = list(tagged_rows(shown, agent, base))
        assert [row.answer for row in rows] == [tagged_reply(s.action) for s in shown[0].steps]
        assert len(rows) == 4
        encoded = encode_rows(tokenizer, rows)
        for before, row in pairwise(encoded):
            said = (*before.prompt, *before.answer)
            assert (row.prompt[: len(said)] == said) == (context == "concat")
            assert row.prompt[-len(chat.turns.opening) :] == chat.turns.opening


def test_what_cannot_be_shown_in_tags(base: Path) -> None:
    with pytest.raises(DataCorrupt, match="a search or an answer"):
        tagged_reply("look")
    home = Environments("comap/ALFWorld-v0", {"source": "generated"})
    env = home("train")
    shown = list(expert_demonstrations(env, env.get_wrapper_attr("tasks").ids[:1]))
    with pytest.raises(OptionError, match="search QA"):
        list(tagged_rows(shown, PaWConfig(), base))
    make = Environments("comap/SearchQA-v0", {"source": "generated"})
    questions = make("train")
    task = next(one for one in questions.get_wrapper_attr("tasks").ids if "3hop" in one)
    long = list(expert_demonstrations(questions, [task]))
    small = PaWConfig(context="concat", max_length=400, draft_tokens=64)
    with pytest.raises(DataCorrupt, match="raise prompt_tokens"):
        list(tagged_rows(long, small, base))


def test_a_simulator_that_is_not_there(place: Path, env: Environments, base: Path) -> None:
    given: dict[str, Any] = {"make_env": env, "device": "cpu", "model": base}
    config = settings("tiny_zerosearch", warmup_tokens=0)
    with pytest.raises((LanguageModelError, OptionError)):
        train(config, out=place / "none", simulator=str(place / "no-such-model"), **given)
    with pytest.raises(OptionError, match="--simulator"):
        train(config, out=place / "none", **given)
