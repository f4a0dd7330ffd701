"""Whole trainings of baselines: what they leave, that they go on, and what they never look at."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from comap.agents.k_head import KHead
from comap.agents.knowledge import KnowledgeBase
from comap.benchmarks.baseline_play import baseline_play_words
from comap.checksums import unseal
from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.trajectory import Trajectory, read_trajectories

pytest.importorskip("trl")
kit = load(f"{Path(__file__).with_name('baseline_kit.py')}:KIT")
say = load(f"{Path(__file__).parents[2] / 'cli_kit.py'}:say")
training_kit = load(f"{Path(__file__).parents[1] / 'training_kit.py'}:KIT")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = kit.model_at(tmp_path_factory.mktemp("models") / "tiny")
    return found


class Spied:
    """A training that has run, with what it learned and when each stage began."""

    def __init__(self, method: str, model: Path, out: Path, **settings: Any):
        self.out, self.stages, self.splits = out, list[str](), dict[str, list[str]]()
        self.samples: dict[str, list[Any]] = {}
        self.run = kit.run_of(kit.small(method, **settings), model, out, self.tell)
        learn = self.run.session.learn

        def spied(stage: Any, role: str, epochs: Any, rate: float, **told: Any) -> Any:
            self.samples[stage.name] = list(epochs[0])
            return learn(stage, role, epochs, rate, **told)

        self.run.session.learn = spied
        self.summary = self.run.run()

    def tell(self, event: Any) -> None:
        made = self.run.session.make_env.made
        if event["event"] == "stage":
            self.stages.append(event["stage"])
            made.clear()
        if event["event"] == "done":
            self.splits[event["stage"]] = list(made)

    def result(self, stage: str) -> Any:
        (path,) = self.out.glob(f"stages/*-{stage}/done.json")
        return unseal(path.read_bytes())


@pytest.fixture(scope="module")
def spied(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Spied]:
    place = tmp_path_factory.mktemp("spied")
    settings: dict[str, dict[str, Any]] = {"sft": {"world_model": True}}
    return {m: Spied(m, model, place / m, **settings.get(m, {})) for m in kit.OWN}


STAGES = {
    "sft": ["warmup-policy", "world-model"],
    "iwm": ["warmup-explorer", "exploration", "world-modelling", "imitation"],
    "wkm": ["state-knowledge", "agent-model"],
    "itp": ["warmup-policy", "world-model", "foresight", "depths", "supervised", "online"],
}
LEFT = {
    "sft": {"agent", "wm"},
    "iwm": {"agent"},
    "wkm": {"agent"},
    "itp": {"agent", "wm", "k_head.safetensors", "value_head.safetensors"},
}


@pytest.mark.parametrize("method", STAGES)
def test_stages_and_what_is_left(spied: dict[str, Spied], method: str) -> None:
    found = spied[method]
    assert found.stages == [*STAGES[method], "evaluation"]
    assert {path.name for path in (found.out / "models").iterdir()} == LEFT[method]
    run = json.loads((found.out / "run.json").read_bytes())
    assert run["described"]["method"] == method
    assert run["described"]["config"] == found.run.config.describe()
    summary = unseal((found.out / "summary.json").read_bytes())
    assert summary["results"]["valid_seen"]["episodes"] == 1 and summary["cpu_seconds"] > 0


@pytest.mark.parametrize("method", STAGES)
def test_only_the_evaluation_sees_another_split(spied: dict[str, Spied], method: str) -> None:
    seen = spied[method].splits
    assert {split for stage in STAGES[method] for split in seen[stage]} <= {"train"}
    assert set(seen["evaluation"]) == {"valid_seen"}


def test_demonstrations_of_another_split_are_refused(model: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    other = [replace(kit.demos_of(1)[0], split="valid_seen")]
    with pytest.raises(OptionError, match="split 'train', found some of 'valid_seen'"):
        kit.run_of(kit.small("sft"), model, tmp_path / "out", demos=other)


@pytest.mark.parametrize("method", STAGES)
def test_only_replies_carry_loss_and_no_prompt_tells_what_follows(
    spied: dict[str, Spied], method: str
) -> None:
    steps = {(d.task, step.t - 1): step for d in kit.demos_of(3) for step in d.steps}
    kinds = Counter(s.kind for rows in spied[method].samples.values() for s in rows)
    assert kinds
    for stage, samples in spied[method].samples.items():
        for sample in samples:
            assert all(scored for _, scored in sample.reply) and not sample.teacher
            asked = "\n".join(message.content for message in sample.messages)
            assert (
                "reference" not in asked and "seen:" not in asked
            )  # the privileged prompt's words
            if stage in ("world-model", "world-modelling"):
                assert "Action:" not in sample.text  # what the world said, not what the policy did
            else:
                assert sample.text == f"Action: {steps[sample.task, sample.step].action}"


def test_sft_is_the_warm_up_of_comap(spied: dict[str, Spied], model: Path, tmp_path: Path) -> None:
    from comap.trainers.run_folder import StageFolder

    config = training_kit.small(
        form="given", warmup_rate=3e-3, draft_tokens=12, warmup_epochs=1, predict_tokens=12
    )
    same = training_kit.training(config, model, tmp_path / "comap")
    stage = StageFolder(tmp_path / "warmup-policy", "warmup-policy")
    stage.path.mkdir()
    same.policies.warm_up(stage)
    ours = next(spied["sft"].out.glob("stages/*-warmup-policy/agent.safetensors"))
    assert ours.read_bytes() == stage.weights("agent").read_bytes()


# -- IWM -------------------------------------------------------------------------------------------


def test_what_is_explored(spied: dict[str, Spied]) -> None:
    found = spied["iwm"]
    counts = found.result("exploration")["counts"]
    assert counts["tasks"] == 2 and counts["states"] == 2 * kit.HORIZON and counts["faults"] == 0
    assert counts["states"] <= counts["alternatives"] <= 2 * counts["states"]
    learned = found.samples["world-modelling"]
    assert len(learned) == counts["states"] + counts["alternatives"]
    assert len({sample.task for sample in learned}) == 2
    world = found.run.session.world_model(found.run.session.counting)
    demo = next(d for d in kit.demos_of(3) if d.task == learned[0].task)
    from comap.worldmodel import transitions_of

    first = next(transitions_of(demo))
    assert learned[0].messages == world.prompt(first.query)
    assert learned[0].text == first.observation


# -- WKM -------------------------------------------------------------------------------------------


def test_the_knowledge_base_is_the_expert_s(spied: dict[str, Spied]) -> None:
    base = list(KnowledgeBase.load(spied["wkm"].out / "knowledge.jsonl"))
    wanted = list(KnowledgeBase.from_trajectories(sorted(kit.demos_of(3), key=lambda d: d.task)))
    assert base == wanted and len(base) == sum(len(d.steps) for d in kit.demos_of(3))


# -- ITP -------------------------------------------------------------------------------------------


def test_depths_and_heads(spied: dict[str, Spied]) -> None:
    found = spied["itp"]
    told = found.result("depths")
    steps = sum(told["k"].values())
    assert told["steps"] == steps > 0 and told["faults"] == 0
    assert set(told["k"]) <= {"0", "1", "2"}
    assert found.result("supervised")["rows"] == 2 * steps  # an action and a draft each
    head = KHead.load(found.out / "models" / "k_head.safetensors")
    value = KHead.load(found.out / "models" / "value_head.safetensors")
    assert head.k_max == 2 and value.k_max == 0
    assert abs(head.weight).sum() > 0 and abs(value.weight).sum() > 0


def online_episodes(out: Path) -> list[Trajectory]:
    paths = sorted(out.glob("stages/*-online/episodes/*.jsonl"))
    return [episode for path in paths for episode in read_trajectories(path)]


def test_what_is_played_online(spied: dict[str, Spied]) -> None:
    played = online_episodes(spied["itp"].out)
    assert len(played) == 3 and {one.split for one in played} == {"train"}
    assert all(one.error is None for one in played)
    depths = Counter(step.notes["k"] for one in played for step in one.steps)
    assert set(depths) <= {0, 1, 2} and len(depths) > 1
    log = spied["itp"].result("online")["log"]
    assert [line["step"] if "step" in line else place + 1 for place, line in enumerate(log)]
    assert len(log) == 2 and all(0 <= line["entropy"] <= 1.1 for line in log)
    mean = sum(k * n for k, n in depths.items()) / sum(depths.values())
    sizes = [2 * kit.HORIZON, kit.HORIZON]
    told = sum(line["k"] * size for line, size in zip(log, sizes, strict=True)) / sum(sizes)
    assert told == pytest.approx(mean)


# -- playing ---------------------------------------------------------------------------------------


def episodes(folder: Path) -> dict[str, Trajectory]:
    paths = sorted(folder.glob("**/trajectories.jsonl"))
    return {one.task: one for path in paths for one in read_trajectories(path)}


@pytest.mark.parametrize("method", STAGES)
def test_the_models_play_as_they_were_evaluated(
    spied: dict[str, Spied], tmp_path: Path, method: str
) -> None:
    out = spied[method].out
    words = baseline_play_words(out)
    assert words[:2] == ["comap", "run"]
    (stage,) = out.glob("stages/*-evaluation")
    evaluated = episodes(stage)
    played = tmp_path / "played"
    code, _, err = say(*words[1:], "--tasks", *evaluated, "--out", str(played))
    assert code == 0, err
    again = episodes(played)
    assert again.keys() == evaluated.keys() and len(again) == 1
    for task, one in again.items():
        assert one.error is None and len(one.steps) == kit.HORIZON
        for here, there in zip(one.steps, evaluated[task].steps, strict=True):
            assert (here.action, here.observation) == (there.action, there.observation)
            assert here.notes == there.notes


def test_words_for_adapters(tmp_path: Path) -> None:
    config = kit.small("itp", weights="lora", exact=False, form="asked")
    described = {"method": "itp", "config": config.describe(), "env": {"id": "comap/WebShop-v0"}}
    run = {"format": "comap training 1", "described": described, "sessions": []}
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(OptionError, match="expected the model that the adapters belong to"):
        baseline_play_words(tmp_path)
    words = " ".join(baseline_play_words(tmp_path, base="Qwen/Qwen3-4B", split="test"))
    models = tmp_path / "models"
    assert "--model Qwen/Qwen3-4B --world-model Qwen/Qwen3-4B --world-model-adapter wm " in words
    assert f"--adapter agent={models}/agent --adapter wm={models}/wm" in words
    assert "--k-source head --told last" in words and "--agent-adapter agent" in words
    assert f"--agent-option k_head={models}/k_head.safetensors" in words
    other = " ".join(baseline_play_words(tmp_path, base="M", world_model="oracle"))
    assert "--world-model oracle" in other and "adapter wm" not in other
    described["method"] = "comap"
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(OptionError, match="found one of 'comap'"):
        baseline_play_words(tmp_path)


# -- going on --------------------------------------------------------------------------------------


def killed_at(model: Path, out: Path, moment: tuple[str, str, int], method: str) -> None:
    """Train until the n-th event of a kind in a stage, and stop there as a signal does."""
    stage, kind, number = moment
    now = ["", 0]

    def tell(event: Any) -> None:
        if event["event"] == "stage":
            now[:] = [event["stage"], 0]
        if now[0] == stage and event["event"] == kind:
            now[1] += 1
            if now[1] == number:
                raise kit.Killed

    with pytest.raises(kit.Killed):
        kit.run_of(kit.small(method), model, out, tell).run()


def files_of(out: Path) -> dict[str, bytes]:
    found = training_kit.files_of(out)
    more = [*out.glob("stages/*/episodes/*.jsonl"), *out.glob("*.jsonl")]
    return {**found, **{str(path.relative_to(out)): path.read_bytes() for path in more}}


MOMENTS = {
    "iwm": [("exploration", "episode", 1), ("imitation", "update", 1)],
    "itp": [
        ("foresight", "task", 1),
        ("supervised", "update", 2),
        ("online", "update", 1),
        ("online", "done", 1),
    ],
}


@pytest.mark.parametrize("method", MOMENTS)
def test_a_killed_training_ends_as_if_it_had_not_been(
    spied: dict[str, Spied], model: Path, tmp_path: Path, method: str
) -> None:
    out = tmp_path / "killed"
    for moment in MOMENTS[method]:
        killed_at(model, out, moment, method)
    kit.run_of(kit.small(method), model, out).run()
    whole = spied[method].out
    assert training_kit.results_of(out) == training_kit.results_of(whole)
    files, wanted = files_of(out), files_of(whole)
    assert sorted(files) == sorted(wanted)
    assert [name for name in wanted if files[name] != wanted[name]] == []


def test_other_settings_do_not_go_on(spied: dict[str, Spied], model: Path) -> None:
    again = kit.run_of(kit.small("wkm", gamma=1.0), model, spied["wkm"].out)
    with pytest.raises(OptionError, match=r"config\.gamma: 0\.7 there, 1\.0 now"):
        again.run()
