"""Whole PaW trainings on generated tasks; as a script, one of several processes, or one that kills.

python test_training.py MODEL OUT
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.errors import DataCorrupt, DataNotFound, OptionError
from comap.lm.create import folder_of
from comap.trainers import stages
from comap.trainers.paw import training
from comap.trainers.paw.config import preset
from comap.trainers.paw.rows import PaWRow
from comap.trainers.paw.training import EVALUATIONS, METRICS, Journal, Policy, read_lines, train
from comap.trainers.setup import Environments
from kits import processes
from kits.event_files import TRACKER, curves_of

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
load_file = pytest.importorskip("safetensors.torch").load_file


HORIZON = 6
ENV = Environments("comap/ALFWorld-v0", {"source": "generated", "max_episode_steps": HORIZON})
SHORT = Environments(ENV.env_id, {**ENV.options, "max_episode_steps": 4})
COUNTED = {"episodes", "dropped", "rows", "prompt_tokens", "response_tokens", "observation_tokens"}
PLAIN = COUNTED | {
    *("update", "success", "solved", "return", "steps", "invalid"),
    *("seconds_rollout", "seconds_old_logps", "seconds_advantages", "seconds_update"),
    *("policy_loss", "clip_fraction", "ratio", "entropy", "kl", "grad_norm", "learning_rate"),
    "sampling_error",
}
OF_PAW = {
    *("wm_lambda", "wm_rows", "wm_loss", "wm_clipped_ratio", "wm_probability"),
    *("wm_nll", "wm_median", "wm_moderate"),
    *("action_entropy", "entropy_correlation", "entropy_overlap"),
}


def small(**changed):
    """Settings of a training that takes seconds."""
    defaults = {
        "groups": 2,
        "members": 2,
        "updates": 2,
        "max_episode_steps": HORIZON,
        "draft_tokens": 8,
        "warmup_tokens": 0,
        "mini_batch_rows": 16,
        "micro_batch_tokens": 2048,
        "log_entropies": True,
        "save_updates": 1,
        "evaluation_splits": ("valid_seen",),
        "evaluation_tasks": 0,
        "lora": {"r": 2},
    }
    return preset("tiny", **{**defaults, **changed})


STRAIGHT = {"algorithm": "gigpo", "evaluation_tasks": 2, "evaluation_seeds": 2}


@dataclass
class Run:
    """What a training left behind, and what was seen of it."""

    out: Path
    rows: list[list[PaWRow]] = field(default_factory=list)  # of each update
    seconds: list[float] = field(default_factory=list)  # of rollouts
    reads: list[bool] = field(default_factory=list)  # whether a row's observation was read as well
    events: list[Mapping[str, Any]] = field(default_factory=list)  # events, and when they came
    order: list[str] = field(default_factory=list)  # of sent weights and played episodes

    def lines(self, name="metrics.jsonl"):
        path = self.out / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def plain(self):
        """The metrics, but for what the clock says."""
        lines = [{k: v for k, v in line.items() if "seconds" not in k} for line in self.lines()]
        return "\n".join(map(json.dumps, lines))

    def file(self):
        """The file of the trained weights."""
        (path,) = (self.out / "models" / "agent").glob("*model.safetensors")
        return path

    def weights(self):
        return self.file().read_bytes()


def trained(out, config, model, **train_options):
    """Train, and watch what is learned from: the rows, and which observations the model reads."""
    from comap.trainers.paw import rows

    run = Run(out)
    roll_out, batch, run_to = training.roll_out, rows.micro_batch, stages.run_to
    language_model = Policy.language_model

    def watched(*args, **options):
        run.order.append("roll out")
        started = time.perf_counter()
        rollouts = roll_out(*args, **options)
        run.rows.append(rollouts.rows)
        run.seconds.append(time.perf_counter() - started)
        return rollouts

    def collated(trees, reads_observation, *args, **options):
        run.reads.extend(reads_observation)
        return batch(trees, reads_observation, *args, **options)

    def evaluated(*args, **options):
        run.order.append("evaluate")
        return run_to(*args, **options)

    def answering(policy):  # an engine gets the weights as they are now
        run.order.append("send")
        return language_model(policy)

    def record_event(event):
        run.events.append({**event, "at": time.perf_counter()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "roll_out", watched)
        patch.setattr(stages, "run_to", evaluated)
        patch.setattr(rows, "micro_batch", collated)
        patch.setattr(Policy, "language_model", answering)
        arguments = {
            "make_env": ENV,
            "out": out,
            "device": "cpu",
            "tell": record_event,
            **train_options,
        }
        assert train(config, model=model, **arguments) == out / "models" / "agent"
    return run


def breaks(task):
    return bool(zlib.crc32(task.encode()) % 2)


class Breaking(gymnasium.Wrapper[str, str, str, str]):
    """An engine that dies in the second step of each episode of half of the tasks."""

    steps = 0

    def reset(self, **options):
        observation, info = self.env.reset(**options)
        self.steps = 2 if breaks(info["task"]) else 0
        return observation, info

    def step(self, action):
        self.steps -= 1
        if self.steps == 0:
            raise RuntimeError("the engine is gone")
        return self.env.step(action)


class Unsafe(Environments):
    """Environments with such engines."""

    def __call__(self, split):
        return Breaking(super().__call__(split))


@pytest.fixture(scope="module")
def model():
    """A policy that wins now and then, so that there is something to compare."""
    try:
        return folder_of("shipped:agent")
    except DataNotFound as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def straight(place, model):
    options = {"about": {"model": "shipped"}, "report_to": TRACKER}
    return trained(place / "straight", small(**STRAIGHT), model, **options)


@pytest.fixture(scope="module")
def runs(place, model):
    """One update of each algorithm, and of GRPO without PaW."""
    changes = {
        "grpo": {},
        "off": {"paw": False},
        "rloo": {"algorithm": "rloo"},
        "ppo": {"algorithm": "ppo", "groups": 4, "members": 1},
    }
    return {
        name: trained(place / name, small(updates=1, **changed), model)
        for name, changed in changes.items()
    }


def test_a_training_leaves_its_folder(straight):
    record = json.loads((straight.out / "run.json").read_text())
    described = record["described"]
    assert (described["method"], described["model"]) == ("paw", "shipped")
    assert described["config"]["algorithm"] == "gigpo" and len(record["sessions"]) == 1
    assert str(straight.out) not in json.dumps(record)
    folders = {path.name for path in straight.out.iterdir() if path.is_dir()} - {"tensorboard"}
    assert folders == {"checkpoints", "evaluations", "models"}
    policy = {path.name for path in straight.file().parent.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= policy
    complete = sorted((straight.out / "checkpoints").glob("checkpoint-*/complete"))
    assert [path.parent.name for path in complete] == ["checkpoint-1", "checkpoint-2"]


def test_each_update_has_a_line(straight):
    lines = straight.lines()
    assert [line["update"] for line in lines] == [1, 2]
    for line, rows in zip(lines, straight.rows, strict=True):
        assert set(line) == PLAIN | OF_PAW
        assert line["rows"] == len(rows)
        assert (line["episodes"], line["dropped"]) == (4, 0)
        assert line["response_tokens"] == sum(len(row.response_ids) for row in rows)
        wins = {row.trajectory: row.success for row in rows}
        assert line["success"] == sum(wins.values()) / 4 and line["return"] == 10 * line["success"]
        assert line["wm_lambda"] == pytest.approx(1 - line["success"])
        assert line["wm_rows"] == -(-len([row for row in rows if row.observation_ids]) * 3 // 4)
        assert line["grad_norm"] > 0
    updates = [event for event in straight.events if event["event"] == "update"]
    apart = ("event", "of", "at")
    assert [{k: v for k, v in event.items() if k not in apart} for event in updates] == lines
    assert {event["of"] for event in updates} == {2}
    episodes = [event for event in straight.events if event["event"] == "episode"]
    assert [(event["update"], event["done"]) for event in episodes] == [
        (update, count) for update in (1, 2) for count in (1, 2, 3, 4)
    ]


def test_a_tracker_gets_success_and_evaluations(straight):
    pytest.importorskip("tensorboard")
    curves = curves_of(straight.out)
    for name in ("success", "return", "wm_loss", "wm_probability", "policy_loss"):
        expected = [(line["update"], pytest.approx(line[name])) for line in straight.lines()]
        assert curves[name] == expected, name
    expected = [(line["update"], line["success"]) for line in straight.lines("evaluations.jsonl")]
    assert curves["evaluation/valid_seen/success"] == [(n, pytest.approx(v)) for n, v in expected]


def test_episodes_that_a_fault_ended_are_told_and_nothing_is_learned_from_them(place, model):
    unsafe = Unsafe(SHORT.env_id, SHORT.options)
    run = trained(place / "faults", small(groups=6, updates=1), model, make_env=unsafe)
    faults, (line,) = run.lines("faults.jsonl"), run.lines()
    assert faults and run.rows[0]
    error_names = {fault["error"].partition(" (")[0] for fault in faults}  # and where it was
    assert error_names == {"RuntimeError: the engine is gone"}
    assert all(breaks(fault["task"]) and fault["update"] == 1 for fault in faults)
    assert (line["dropped"], line["episodes"]) == (len(faults), 12 - len(faults))
    fault_ids, learned_ids = (
        {n["episode"] for n in faults},
        {row.trajectory for row in run.rows[0]},
    )
    assert fault_ids | learned_ids == set(range(12)) and not fault_ids & learned_ids


def test_a_policy_is_evaluated_first_and_last(straight):
    lines = straight.lines(EVALUATIONS)
    assert [(entry["update"], entry["split"], entry["n"]) for entry in lines] == [
        (0, "valid_seen", 4),
        (2, "valid_seen", 4),
    ]
    for line in lines:
        assert len(line["won"]) == 2 and line["errors"] == 0
        assert sum(line["won"].values()) == 4 * line["success"] and 1 <= line["steps"] <= HORIZON
    names = {path.name for path in (straight.out / "evaluations").iterdir()}
    assert names == {f"{update:04d}-valid_seen-{seed}" for update in (0, 2) for seed in (0, 1)}
    # a server must sample with the weights as they are, in evaluations too
    evaluation, rollouts = ["send", "evaluate"] * 2, ["send", "roll out"]
    assert straight.order == [*evaluation, *rollouts, *rollouts, *evaluation]
    begin_time, end_time = (
        next(event["at"] for event in straight.events if event["event"] == kind)
        for kind in ("evaluation", "evaluated")
    )  # whose time is none of the rollouts'
    seconds = straight.lines()[0]["seconds_rollout"]
    assert 0 <= seconds - straight.seconds[0] < end_time - begin_time


def test_a_training_that_was_stopped_goes_on(straight, place, model):
    """The number of updates to stop after may grow; nothing else may change."""
    out, evaluated_updates = place / "stopped", []
    for stop in (1, None):
        run = trained(out, small(**STRAIGHT, max_updates=stop), model)
        evaluated_updates.append([line["update"] for line in run.lines("evaluations.jsonl")])
    assert evaluated_updates == [[0, 1], [0, 1, 2]]
    assert run.plain() == straight.plain() and run.weights() == straight.weights()
    assert run.weights() != (model / "model.safetensors").read_bytes()
    assert run.lines(EVALUATIONS)[-1] == straight.lines(EVALUATIONS)[-1]
    assert len(json.loads((out / "run.json").read_text())["sessions"]) == 2


def test_a_training_that_has_ended_is_left_as_it_is(straight, model):
    names = ("metrics.jsonl", "evaluations.jsonl")
    before = [(straight.out / name).read_bytes() for name in names]
    weights = straight.weights()
    for stop in (None, 1):
        config = small(**STRAIGHT, max_updates=stop)
        run = trained(straight.out, config, model, about={"model": "shipped"})
        event_names = [event["event"] for event in run.events]
        assert not run.rows and event_names == ["engine"] and run.weights() == weights
    assert [(straight.out / name).read_bytes() for name in names] == before


def test_evaluations_of_updates_that_are_lost_are_forgotten(place, model):
    """Their weights may have come out other, and so may the number of processes be another."""
    out = place / "lost"
    run = trained(out, small(updates=1, evaluation_tasks=2), model, make_env=SHORT)
    first_evaluations = run.lines("evaluations.jsonl")
    played = out / "evaluations" / "0001-valid_seen-0"
    unfinished = played.with_name("0002-valid_seen-0") / "rank-0-of-1"
    played.joinpath("rank-0-of-1").rename(played / "rank-0-of-2")
    unfinished.mkdir(parents=True)
    (unfinished / "trajectories.jsonl").write_text("of an update that is done again\n")
    (out / "evaluations.jsonl").write_text(
        json.dumps(first_evaluations[0]) + '\n{"update": 1, "spl'
    )
    resumed = trained(out, small(updates=1, evaluation_tasks=2), model, make_env=SHORT)
    assert resumed.lines("evaluations.jsonl") == first_evaluations
    assert not unfinished.exists() and [path.name for path in played.iterdir()] == ["rank-0-of-1"]


def test_other_settings_are_refused_in_the_same_folder(straight, model):
    before = straight.plain()
    changes = ({"learning_rate": 1e-4}, {"paw": False}, {"updates": 3})
    for change in (*changes, {}):
        name, description = next(iter(change), "model"), {"model": "shipped" if change else "other"}
        with pytest.raises(OptionError, match=rf"other settings .*{name}"):
            trained(straight.out, small(**{**STRAIGHT, **change}), model, about=description)
    assert straight.plain() == before


def seen_rooms(episode):
    """The share of the steps that changed what is known."""
    return [float(len(step.delta) > 0) for step in episode.steps]


def test_rewards_of_ones_own(runs, place, model):
    rewarded = trained(place / "own", small(updates=1), model, reward=seen_rooms)
    (rows,), (usual,) = rewarded.rows, runs["grpo"].rows
    assert [row.response_ids for row in rows] == [row.response_ids for row in usual]
    assert {row.reward for row in rows} == {0.0, 1.0}
    assert all(
        row.episode_return == sum(r.reward for r in rows if r.trajectory == row.trajectory)
        for row in rows
    )
    assert rewarded.weights() != runs["grpo"].weights()
    changed = json.loads((rewarded.out / "run.json").read_text())["described"]["changed"]
    assert changed["reward"].endswith(".seen_rooms")
    with pytest.raises(OptionError, match="other settings"):
        trained(rewarded.out, small(updates=1), model)
    with pytest.raises(OptionError, match="a number for each of"):
        trained(place / "short", small(updates=1), model, reward=lambda episode: [])
    with pytest.raises(OptionError, match="algorithm='ppo'"):
        train(small(algorithm="ppo"), model=model, make_env=ENV, out=place / "no", advantage=len)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "ppo"])
def test_each_algorithm_updates_its_policy(algorithm, runs, model):
    run = runs[algorithm]
    (line,) = run.lines()
    extra_keys = {"value_loss"} if algorithm == "ppo" else set()
    assert set(line) == PLAIN | OF_PAW | extra_keys
    assert line["grad_norm"] > 0 and line["episodes"] == 4
    before, after = load_file(model / "model.safetensors"), load_file(run.file())
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name].float(), after[name].float()) for name in before)
    critic = run.out / "checkpoints" / "checkpoint-1" / "critic"
    assert critic.is_dir() == (algorithm == "ppo")


def test_without_paw_the_same_is_played_and_no_observation_is_read(runs):
    off, on = runs["off"], runs["grpo"]
    assert off.rows == on.rows == runs["rloo"].rows and off.weights() != on.weights()
    assert set(off.lines()[0]) == PLAIN
    assert off.reads and not any(off.reads) and any(on.reads)
    assert on.reads.count(True) == on.lines()[0]["wm_rows"]


def test_adapters_are_trained_and_gone_on_with(place, model):
    config = {
        "weights": "lora",
        "learning_rate": 1e-2,
        "groups": 1,
        "mini_batch_rows": None,
        "evaluation_tasks": 1,
    }
    whole = trained(place / "lora", small(**config), model, make_env=SHORT)
    assert whole.file().name == "adapter_model.safetensors"
    for stop in (1, 2):
        parts = small(**config, max_updates=stop)
        part = trained(place / "lora in parts", parts, model, make_env=SHORT)
    assert part.plain() == whole.plain() and part.weights() == whole.weights()
    assert part.lines("evaluations.jsonl")[-1] == whole.lines("evaluations.jsonl")[-1]
    first, second = (line["kl"] for line in whole.lines())
    assert first == pytest.approx(0, abs=1e-9) and second > 0


@pytest.mark.parametrize(
    "damage", ["not JSON", "[1]", '"text"', "{}", '{"update": "1"}', "null", "\x00\x00", "\xff"]
)
def test_a_damaged_line_is_told_with_its_number(tmp_path, damage):
    journal = Journal(tmp_path)
    for update in (1, 2, 3):
        journal.add(METRICS, {"update": update})
    path = tmp_path / METRICS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage.encode("latin-1") + b"\n" + lines[2])
    for attempt in (lambda: read_lines(path), lambda: Journal(tmp_path).begin_after(3)):
        with pytest.raises(DataCorrupt, match=r"in line 2 of .*metrics\.jsonl.*remove that line"):
            attempt()
    assert len(path.read_bytes().splitlines()) == 3, "nothing is thrown away"


BOUNDARIES = (
    "evaluations/0000-*/rank-0-of-1/trajectories.jsonl",  # an evaluation is half played
    "evaluations.jsonl",  # rollouts of the first update
    "checkpoints/checkpoint-1/trainer_state.json",  # an update is done, its checkpoint half written
    "evaluations/0002-*/rank-0-of-1/trajectories.jsonl",  # all is trained
)


def kill(model, place):
    """Train in children that are killed with SIGKILL as soon as a file is there, and begun again."""
    # in double precision what is sampled does not depend on which episodes are left to play
    config = small(algorithm="gigpo", precision="float64", evaluation_tasks=2, concurrency=4)

    def attempt(out, now):
        def work():
            train(config, model=model, make_env=SHORT, out=out, device="cpu")

        return bool(processes.attempt(work, out.with_suffix(".log"), now))

    processes.import_trainers()
    attempt(place / "straight", lambda: False)
    out, killed = place / "killed", []
    for boundary in BOUNDARIES:
        if not attempt(out, lambda pattern=boundary: any(out.glob(pattern))):
            killed.append(boundary)
    attempt(out, lambda: False)
    (place / "report.json").write_text(json.dumps(killed))


def remains_of(run):
    """Return what a training left behind, but for what the clock says."""
    kinds = ("**/*.safetensors", "**/trajectories.jsonl", EVALUATIONS)
    paths = [path for kind in kinds for path in sorted(run.out.glob(kind))]
    files = {str(path.relative_to(run.out)): path.read_bytes() for path in paths}
    return {METRICS: run.plain(), **files}


def test_a_training_killed_at_each_boundary_ends_as_one_that_was_not(model, tmp_path):
    killed = processes.report_of(__file__, tmp_path, str(model))
    assert len(killed) >= len(BOUNDARIES) - 1, "the last one may come too late"
    straight_files, killed_files = (
        remains_of(Run(tmp_path / name)) for name in ("straight", "killed")
    )
    played = [name.split("/")[1] for name in straight_files if name.endswith("trajectories.jsonl")]
    assert played == ["0000-valid_seen-0", "0002-valid_seen-0"]
    assert "models/agent/model.safetensors" in straight_files and sorted(killed_files) == sorted(
        straight_files
    )
    assert [name for name in straight_files if killed_files[name] != straight_files[name]] == []
    assert not list((tmp_path / "killed").glob("**/*.part"))


def share(model, out):
    """What one process or two train: three groups, an odd one out.

    A row is read by itself: padding moves the positions, whose angles Qwen3 has in single precision.
    """
    config = small(
        algorithm="gigpo",
        groups=3,
        updates=1,
        evaluation_tasks=1,
        precision="float64",
        micro_batch_rows=1,
        micro_batch_tokens=None,
    )
    train(config, model=model, make_env=SHORT, out=out, device="cpu")


def begin(out):
    """A training whose model is built and warmed up first."""
    config = small(updates=1, groups=2, warmup_tokens=1000, demonstrations=1)
    train(config, model=None, make_env=SHORT, out=out, device="cpu")


@processes.needs_gloo
def test_two_processes_train_as_one_does(model, tmp_path):
    processes.together(Path(__file__), str(model), str(tmp_path))
    share(model, tmp_path / "one")
    single, double = (Run(tmp_path / out) for out in ("one", "two"))
    assert [line["update"] for line in single.lines()] == [1]
    for line, other_line in zip(single.lines(), double.lines(), strict=True):
        shared_fields = {k: v for k, v in line.items() if "seconds" not in k}
        assert {k: other_line[k] for k in shared_fields} == pytest.approx(
            shared_fields, rel=1e-6, abs=1e-9
        )
    assert single.lines("evaluations.jsonl") == double.lines("evaluations.jsonl")
    weights, others = (load_file(run.file()) for run in (single, double))
    for key, weight in weights.items():
        assert (weight - others[key]).abs().max() < 1e-7, key
    unfinished = Run(tmp_path / "begun")
    assert len(unfinished.lines()) == 1 and load_file(
        unfinished.out / "model" / "model.safetensors"
    )


if __name__ == "__main__":
    if "RANK" in os.environ:
        share(Path(sys.argv[1]), Path(sys.argv[2], "two"))
        begin(Path(sys.argv[2], "begun"))
    else:
        kill(Path(sys.argv[1]), Path(sys.argv[2]))
