"""Whole trainings: their stages, what each leaves behind, and what the models then do."""

from __future__ import annotations

import json
import lzma
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from comap.agents import ExpertAgent
from comap.agents.comap import CoMapAgent
from comap.agents.run import Run, run_to
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound, OptionError
from comap.trainers.coevolution import roles_of
from comap.trainers.config import PRESETS
from comap.trainers.demonstrations import read_demonstrations
from comap.trainers.roles import Roles
from comap.trainers.run_folder import RunFolder, StageFolder, read_json
from comap.trainers.session import Session

pytest.importorskip("trl")
KIT = load(f"{Path(__file__).with_name('training_kit.py')}:KIT")
STAGES = [
    "warmup-policy",
    "warmup-rollouts",
    "warmup-world-model",
    "frozen-transitions",
    "reflection-drafts",
    "reflection-suffixes",
    "reflection-init",
    "round-0-evaluation",
    "round-1-rollouts",
    "round-1-world-model",
    "round-1-policy",
    "round-1-evaluation",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = KIT.model_at(tmp_path_factory.mktemp("coevolution") / "model")
    return found


class Ended:
    """A training that has been run to its end."""

    def __init__(self, model: Path, out: Path, **settings: Any):
        self.model, self.out = model, out
        self.config, self.events = KIT.small(**settings), list[Any]()
        self.training = KIT.training(self.config, model, out, self.events.append)
        self.session: Session = self.training.session
        self.summary = self.training.run()

    def stage(self, name: str) -> StageFolder:
        return self.session.places[name]

    def result(self, name: str) -> dict[str, Any]:
        found = self.stage(name).result()
        assert found is not None
        return found

    def weights(self, stage: str, role: str) -> dict[str, Any]:
        from safetensors.torch import load_file

        return dict(load_file(self.stage(stage).weights(role)))

    def again(self, **settings: Any) -> list[Any]:
        events: list[Any] = []
        config = KIT.small(**settings)
        KIT.training(config, self.model, self.out, events.append).run()
        return events


# -- one training with the paper's objectives ------------------------------------------------------

PLAIN = {"accumulate": 64, "live": 3}  # each stage makes one update for each epoch


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(model, tmp_path_factory.mktemp("plain") / "run", **PLAIN)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    assert one.keys() == other.keys()
    return all(bool((one[name] == other[name]).all()) for name in one)


def test_stages_come_in_order(plain: Ended) -> None:
    begun = [event["stage"] for event in plain.events if event["event"] == "stage"]
    assert begun == STAGES
    folders = sorted(path.name for path in (plain.out / "stages").iterdir())
    assert folders == [f"{number:02d}-{name}" for number, name in enumerate(STAGES)]
    assert list(plain.summary["stages"]) == STAGES
    assert read_json(plain.out / "summary.json") == plain.summary
    assert {path.name for path in (plain.out / "models").iterdir()} >= {"agent", "wm"}
    updates = [event for event in plain.events if event["event"] == "update"]
    assert {event["stage"] for event in updates} == {
        name for name in STAGES if plain.result(name).get("updates")
    }


def test_results_of_stages(plain: Ended) -> None:
    labels = plain.result("reflection-suffixes")
    assert labels["labels"] + sum(labels["counts"].values()) == 4  # 2 states of 2 tasks
    rollouts = plain.result("round-1-rollouts")
    assert (rollouts["episodes"], rollouts["errors"]) == (2, 0)
    assert rollouts["gates"]["steps"] == rollouts["steps"]
    world = plain.result("round-1-world-model")
    assert world["samples"]["world_model"] == rollouts["steps"]
    assert world["rows"] == sum(world["samples"].values()) and world["updates"] == 1
    assert {"nll", "distillation"} <= set(world["log"][0])
    policy = plain.result("round-1-policy")
    assert {"nll", "bce"} <= set(policy["log"][0])
    for number in (0, 1):
        found = plain.result(f"round-{number}-evaluation")
        assert found["round"] == number and found["splits"]["valid_seen"]["episodes"] == 1
        assert set(found["world_model"]) == {"frozen", "on_policy"}
        assert found["gates"]["context_sources"] == {}, "no gate of the world state: no teacher"
    prints = [
        plain.result(f"round-{number}-evaluation")["world_model"]["frozen"]["fingerprint"]
        for number in (0, 1)
    ]
    assert prints[0] == prints[1]


def test_each_stage_changes_its_own_roles_alone(plain: Ended) -> None:
    saved = {name: sorted(plain.result(name).get("weights", {})) for name in STAGES}
    world, policy = ["wm", "wm_ema"], ["agent", "head"]
    assert {name: files for name, files in saved.items() if files} == {
        "warmup-policy": policy,
        "warmup-world-model": world,
        "reflection-init": policy,
        "round-1-world-model": world,
        "round-1-policy": policy,
    }
    final = Roles.open(
        plain.model, kind="full", saved=plain.out / "models", dtype="float64", device="cpu"
    )
    assert same(final.state("agent"), plain.weights("round-1-policy", "agent"))
    assert same(final.state("wm"), plain.weights("round-1-world-model", "wm"))
    for one, other in (("warmup-policy", "reflection-init"), ("reflection-init", "round-1-policy")):
        for role in ("agent", "head"):
            unmoved = same(plain.weights(one, role), plain.weights(other, role))
            assert not unmoved, (one, other, role)
    assert not plain.weights("warmup-policy", "head")["weight"].any()


def test_the_teacher(plain: Ended) -> None:
    """It begins as a copy, and moves by mu after the one update of the round (METHODS.md 1.7)."""
    before, teacher = (plain.weights("warmup-world-model", role) for role in ("wm", "wm_ema"))
    alike = same(before, teacher)
    assert alike
    student, after = (plain.weights("round-1-world-model", role) for role in ("wm", "wm_ema"))
    unmoved = same(before, student)
    assert not unmoved
    for name, weight in after.items():
        wanted = 0.99 * before[name] + 0.01 * student[name]
        assert float((weight - wanted).abs().max()) < 1e-15


def test_saved_models_play_as_in_the_last_evaluation(plain: Ended, tmp_path: Path) -> None:
    models = plain.out / "models"
    roles = Roles.open(
        plain.model,
        kind="full",
        roles=("agent", "wm"),
        saved=models,
        dtype="float64",
        device="cpu",
    )
    lm = roles.language_model(exact=True)
    agent = CoMapAgent(plain.session.comap_config(0.0), models / "head.safetensors")
    place = plain.stage("round-1-evaluation").path / "valid_seen-0" / "rank-0-of-1"
    wanted = (place / "trajectories.jsonl").read_bytes()
    run = Run(
        make_env=partial(KIT.make_env, "valid_seen"),
        agent=agent,
        tasks=[json.loads(line)["task"] for line in wanted.splitlines()],
        lm=lm,
        world_model=plain.session.world_model(lm),
        config={"split": "valid_seen"},
    )
    run_to(tmp_path, run, live=1)
    assert (tmp_path / "trajectories.jsonl").read_bytes() == wanted


def test_a_training_that_has_ended_is_known(plain: Ended) -> None:
    files = KIT.files_of(plain.out)
    events = plain.again(**{**PLAIN, "live": 1})
    assert [event["event"] for event in events] == ["known"] * len(STAGES)
    assert KIT.files_of(plain.out) == files
    assert read_json(plain.out / "summary.json") == plain.summary


def test_the_folder_of_another_training(plain: Ended, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"config\.eta: 0\.5 there, 0\.25 now"):
        plain.again(**PLAIN, eta=0.25)
    other = KIT.training(plain.config, plain.model, plain.out)
    other.session.demos = other.session.demos[:1]
    with pytest.raises(OptionError, match="demonstrations: '3, sha256"):
        other.run()
    with RunFolder(tmp_path).open({}, {}), pytest.raises(OptionError, match="cannot write"):
        KIT.training(plain.config, plain.model, tmp_path).run()


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"agent": "../../agent.safetensors"}, "expected weights of"),
        ({"other": "other.safetensors"}, "expected weights of"),
        (["agent"], "expected weights of"),
        ({"agent": "agent.safetensors"}, "expected the weights of agent"),
    ],
)
def test_damaged_folders(plain: Ended, tmp_path: Path, told: Any, named: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(plain.out, out)
    path = out / "stages" / "10-round-1-policy"
    done = read_json(path / "done.json") | {"weights": told, "weights_files": {}}  # as of old
    (path / "done.json").write_text(json.dumps(done))
    (path / "agent.safetensors").write_bytes(b"none")
    (out / "stages" / "11-round-1-evaluation" / "done.json").unlink()
    with pytest.raises(DataCorrupt, match=named):
        KIT.training(plain.config, plain.model, out).run()


# -- other settings --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authors(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    settings = {**PRESETS["authors_code"], **PLAIN, "tau_p": 0.0}
    out = tmp_path_factory.mktemp("authors") / "run"
    return Ended(model, out, **settings, frozen_transitions=0, diagnosed=0)


def test_the_authors_code(authors: Ended) -> None:
    assert roles_of(authors.config) == ("agent", "wm", "wm_ema", "agent_ema")
    assert [name for name in STAGES if name in authors.session.places] == [
        name for name in STAGES if not name.startswith(("reflection", "frozen"))
    ]
    began = [authors.weights("warmup-policy", role) for role in ("agent", "agent_ema")]
    assert same(*began)
    agent, teacher = (authors.weights("round-1-policy", role) for role in ("agent", "agent_ema"))
    for name, weight in teacher.items():  # a rate of 0.01 after the one update
        wanted = 0.99 * began[0][name] + 0.01 * agent[name]
        assert float((weight - wanted).abs().max()) < 1e-15
    world = [authors.weights("round-1-world-model", role) for role in ("wm", "wm_ema")]
    assert same(*world), "their teacher is a copy of the student's checkpoint"
    samples = authors.result("round-1-policy")["samples"]
    assert "anchor" not in samples and samples["self_distill"] and samples["own_anchor"]
    notes = [s.notes for t in authors.session.episodes("round-1-rollouts") for s in t.steps]
    assert {note["p_source"] for note in notes if note["path"] == "reflected"} == {"verbal"}
    assert {note["wm_teacher"] for note in notes} == {None}
    assert not authors.weights("round-1-policy", "head")["weight"].any(), "there is no head"


@pytest.fixture(scope="module")
def standard(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(
        model,
        tmp_path_factory.mktemp("standard") / "run",
        weights="lora",
        prompts="standard",
        state_text="history",
        p_source="verbalizer",
        tau_p=0.0,
        outcome_filter="suffix",
        privileged_share=0.0,
        init_anchor=0.0,
        warmup_rollouts=0,
        demonstrations=2,
        tasks_per_round=1,
        reflection_tasks=1,
        evaluation_tasks=0,
        frozen_transitions=0,
        batch_rows=2,
        batch_tokens=None,
        accumulate=64,
    )


def test_standard_prompts_with_adapters(standard: Ended) -> None:
    assert "warmup-rollouts" not in standard.session.places
    analyses = read_json(standard.stage("reflection-init").path / "analyses.json")
    assert len(analyses) == sum(standard.result("reflection-init")["samples"].values()) == 2
    log = standard.result("round-1-policy")["log"]
    assert log and "bce" in log[0], "the words of the decision carry the label"
    assert not standard.weights("round-1-policy", "head")["weight"].any()
    judged = standard.stage("round-1-policy").path / "suffixes" / "rank-0-of-1" / "outcomes.jsonl"
    notes = [s.notes for t in standard.session.episodes("round-1-rollouts") for s in t.steps]
    changed = [n for n in notes if n["path"] == "reflected" and n["gate_parts"]["changed"]]
    assert judged.exists() and len(judged.read_text().splitlines()) >= len(changed) > 0
    assert {note["p_source"] for note in notes if note["path"] == "reflected"} == {"verbalizer"}
    names = {path.name for path in (standard.out / "models" / "agent").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "checksums.json"}
    assert standard.result("round-1-evaluation")["splits"]["valid_seen"]["episodes"] == 0


# -- rounds and buffers, with learning recorded ----------------------------------------------------


@pytest.mark.parametrize("buffer", ["last", "all"])
def test_rounds_and_buffers(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: str
) -> None:
    told = {"frozen_transitions": 0, "diagnosed": 0, "rounds": 3, "reflection_init": False}
    config = KIT.small(**told, buffer=buffer, evaluation_tasks=1, final_tasks=2)
    found = KIT.Recorded(config, model, tmp_path, monkeypatch)
    played = {k: found.played(f"round-{k}-rollouts") for k in (1, 2, 3)}
    assert len({tuple(t.task for t in episodes) for episodes in played.values()}) == 3
    for k in (1, 2, 3):
        rows = [s for s in found.samples(f"round-{k}-world-model") if s.kind == "world_model"]
        rounds = range(1, k + 1) if buffer == "all" else (k,)
        wanted = [t.task for r in rounds for t in played[r] for _ in t.steps]
        assert [row.task for row in rows] == wanted
    counts = [
        found.session.places[f"round-{k}-evaluation"].result()["splits"]["valid_seen"]["episodes"]
        for k in range(4)
    ]
    assert counts == [1, 1, 1, 2], "final_tasks counts after the last round alone"
    seeds = {t.seed for episodes in played.values() for t in episodes}
    assert len(seeds) >= 3 and None not in seeds


def test_models_that_come_warmed_up(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = KIT.training(KIT.small(), model, tmp_path, warmed_up=True)
    assert [name for name, _ in training.stages()] == STAGES[3:]


def test_no_rounds(model: Path, tmp_path: Path) -> None:
    training = KIT.training(KIT.small(rounds=0), model, tmp_path)
    assert [name for name, _ in training.stages()] == STAGES[:8]


def test_what_another_number_of_processes_had_begun_is_left_out(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = KIT.training(KIT.small(), model, tmp_path).session
    tasks = session.tasks("train")[:2]
    play = partial(session.play, tmp_path / "episodes", "train", ExpertAgent(), tasks)
    with monkeypatch.context() as patch:
        patch.setattr("comap.trainers.playing.world_size", lambda: 2)
        patch.setattr("comap.trainers.playing.wait", lambda: None)
        assert [t.task for t in play()] == [tasks[0]], "the other process is not here"
    session.places["some"] = StageFolder(tmp_path, "some")
    assert [t.task for t in play()] == [*tasks]
    assert sorted(t.task for t in session.episodes("some")) == sorted(tasks)
    assert [path.name for path in (tmp_path / "episodes").iterdir()] == ["rank-0-of-1"]


# -- demonstrations --------------------------------------------------------------------------------


def test_demonstrations_are_read(tmp_path: Path) -> None:
    steps = [{"command": "look"}, {"command": None}, {"command": "go to desk 1"}]
    lines = [
        json.dumps({"game": f"a/b/train/kind/trial_{n}/game.tw", "steps": steps}) for n in "12"
    ]
    whole = lzma.compress("\n".join(lines).encode())
    (tmp_path / "plain.jsonl").write_text("\n".join(lines))
    (tmp_path / "packed.jsonl.xz").write_bytes(whole)
    wanted = [(f"train/kind/trial_{number}", ("look", "go to desk 1")) for number in "12"]
    for name in ("plain.jsonl", "packed.jsonl.xz"):
        assert list(read_demonstrations(tmp_path / name)) == wanted
    with pytest.raises(DataNotFound, match="cannot be read"):
        list(read_demonstrations(tmp_path / "nothing.jsonl"))
    damaged = {
        "cut.xz": whole[:-20],
        "other.xz": b"no xz at all",
        "bytes.jsonl": b"\xff\xfe\xff",
        "list.jsonl": b"[1]",
        "text.jsonl": b"look",
        "steps.jsonl": b'{"game": "a/b/c/d", "steps": [{"command": 3}]}',
        "game.jsonl": b'{"game": 3, "steps": []}',
        "none.jsonl": b'{"game": "a", "steps": null}',
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataCorrupt, match=r"expected (demonstrations|a demonstration)"):
            list(read_demonstrations(tmp_path / name))
