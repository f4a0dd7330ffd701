"""Settings, models to begin with, work that is done once, and WKM with a model that writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from comap.agents.knowing import state_request, task_request
from comap.agents.knowledge import KnowledgeBase
from comap.agents.wkm import WKMAgent
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from comap.lm import Completion
from comap.trainers.baselines.methods import ITPTraining, IWMTraining, WKMTraining
from comap.trainers.baselines.once import each_once
from comap.trainers.baselines.presets import BASELINES, baseline_preset
from comap.trainers.config import CoMapTraining
from comap.trainers.replayed import views_of

kit = load(f"{Path(__file__).with_name('baseline_kit.py')}:KIT")
scripted = load(f"{Path(__file__).parents[2] / 'agents' / 'scripted.py'}:converse_with").__globals__


KNOWING = ("task knowledge", "state knowledge")


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", BASELINES)
def test_presets(method: str) -> None:
    paper, tiny = (baseline_preset(method, name) for name in ("paper", "tiny"))
    same = CoMapTraining()
    assert (paper.lora_r, paper.lora_alpha, paper.epochs) == (same.lora_r, same.lora_alpha, 3)
    assert paper.learning_rate == (1e-4 if method == "wkm" else 2e-5)
    assert paper.accumulate == 16 and paper.batch_rows == 1
    assert tiny.weights == "full" and tiny.exact and tiny.prompts == "brief"
    assert json.loads(json.dumps(tiny.describe())) == tiny.describe()


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("iwm", {"alternatives": 0}, "alternatives must be a whole number of at least 1"),
        ("wkm", {"gamma": 1.5}, "gamma must be a number of at least 0 and at most 1"),
        ("wkm", {"weights": "full"}, "a knowledge model is an adapter"),
        ("itp", {"episodes": -1}, "episodes must be a whole number of at least 0"),
        ("sft", {"save_steps": 15}, "save_steps must be a multiple"),
        ("sft", {"batch_tokens": 9}, "either batch_rows or batch_tokens"),
        ("sft", {"alternatives": 2}, "there is no setting 'alternatives'"),
        ("swm", {}, "there is no baseline 'swm'"),
    ],
)
def test_settings_that_cannot_be(method: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        baseline_preset(method, "paper", **settings)


def test_published_settings_of_itp() -> None:
    config = ITPTraining()
    told = (config.depth_weight, config.discount, config.online_rate, config.entropy_weight)
    assert told == (0.5, 0.99, 5e-6, 0.01) and config.episodes == 50
    assert IWMTraining().world_epochs == 1


# -- work that is done once ------------------------------------------------------------------------


def test_what_is_written_is_not_done_again(tmp_path: Path) -> None:
    done: list[str] = []

    def work(keys: Sequence[str]) -> Any:
        for key in keys:
            if len(done) == 2:
                raise KeyboardInterrupt
            done.append(key)
            yield key, {"was": key}

    with pytest.raises(KeyboardInterrupt):
        each_once(tmp_path, ["a", "b", "c"], work)
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"key": "c", "va')  # half a line, as of a process that was killed
    found = each_once(tmp_path, ["c", "a", "b"], lambda keys: [(key, None) for key in keys])
    assert found == {"c": None, "a": {"was": "a"}, "b": {"was": "b"}} and next(iter(found)) == "c"
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(DataCorrupt, match="line 1 of"):
        each_once(tmp_path, ["a"], lambda keys: [])


# -- models to begin with --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("trl")
    found: Path = kit.model_at(tmp_path_factory.mktemp("models") / "tiny")
    return found


def lora(method: str, **settings: Any) -> Any:
    told = {"lora_r": 2, "lora_alpha": 4, "lora_dropout": 0.0}
    return kit.small(method, weights="lora", **told, **settings)


def test_adapters_to_begin_with(model: Path, tmp_path: Path) -> None:
    import torch

    from comap.trainers.baselines.opening import open_baseline

    config = lora("itp")
    roles = open_baseline(config, model)
    assert roles.names == ("agent", "wm")
    with torch.no_grad():
        for weight in roles.parameters("agent").values():
            weight += 1
    roles.save(tmp_path / "models", ("agent",))
    place = tmp_path / "models" / "agent"
    again = open_baseline(config, model, {"agent": place})
    assert all(torch.equal(w, again.state("agent")[n]) for n, w in roles.state("agent").items())
    fresh = open_baseline(config, model).state("wm")
    assert all(torch.equal(weight, again.state("wm")[name]) for name, weight in fresh.items())
    with pytest.raises(
        OptionError, match=r"expected an adapter with .*'alpha': 4.* found .*'alpha'"
    ):
        (place / "checksums.json").unlink()  # changed on purpose
        told = json.loads((place / "adapter_config.json").read_text())
        (place / "adapter_config.json").write_text(json.dumps({**told, "lora_alpha": 8}))
        open_baseline(config, model, {"agent": place})
    with pytest.raises(DataNotFound, match="expected an adapter"):
        open_baseline(config, model, {"agent": tmp_path})
    with pytest.raises(OptionError, match="the method sft has no wm"):
        open_baseline(kit.small("sft"), model, {"wm": model})


def test_a_policy_that_is_given_explores_itself(model: Path, tmp_path: Path) -> None:
    run = kit.run_of(kit.small("iwm"), model, tmp_path, begun=("agent",))
    assert run.session.roles.names == ("agent",) and run.method.explorer == "agent"
    assert run.stages()[0][0] == "exploration"


# -- WKM with a model that writes ------------------------------------------------------------------


class Writing(scripted["HashedModel"]):  # type: ignore[misc]
    """Writes knowledge in the place of a model that can; one request fails."""

    def _one(self, request: Any) -> Any:
        if request.purpose.startswith(("task knowledge", "state knowledge")):
            if "never" in request.purpose:
                return LanguageModelError("no")
            number = self._draw(request.messages) % 97
            kind = request.purpose.split()[0]
            return Completion(f"When {number}, you should look ({kind}).", (1,), (-0.1,))
        return super()._one(request)


@pytest.fixture(scope="module")
def wkm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training of WKM with LoRA: the knowledge's writer is scripted, the learning is real."""
    out = tmp_path_factory.mktemp("wkm") / "out"
    config = lora("wkm", task_knowledge="lm", state_knowledge="lm", compared=2, max_length=1024)
    run = kit.run_of(config, model, out)
    run.lm = Writing()
    run.session.roles.language_model = lambda **told: run.lm
    run.samples = {}
    learn = run.session.learn

    def spied(stage: Any, role: str, epochs: Any, rate: float, **told: Any) -> Any:
        run.samples[stage.name] = (role, list(epochs[0]))
        return learn(stage, role, epochs, rate, **told)

    run.session.learn = spied
    run.summary = run.run()
    return run


def test_stages_with_a_writer(wkm: Any) -> None:
    names = [name for name, _ in wkm.stages()]
    assert names == [
        *("rollouts", "task-knowledge", "state-knowledge", "knowledge-model", "agent-model"),
        "evaluation",
    ]
    left = {path.name for path in (wkm.out / "models").iterdir()}
    assert left == {"agent", "knowledge"}
    told = wkm.summary["stages"]["task-knowledge"]
    assert told["tasks"] == 3 and told["compared"] <= 2 and told["faults"] == 0


def test_task_knowledge_compares_with_what_failed(wkm: Any) -> None:
    asked = [one for one in wkm.lm.asked if one.purpose == "task knowledge from episodes"]
    assert len(asked) == 3 and {one.adapter for one in asked} == {"knowledge"}
    failed = {one.task for one in wkm.session.episodes("rollouts") if not one.success}
    assert failed  # the model that is asked has learned nothing
    texts = [one.messages[-1].content for one in asked]
    assert sum("failed:\n" in text for text in texts) == len(failed)
    assert all(f"> {kit.demos_of(3)[0].steps[0].action}" in texts[i] or i for i in range(3))


def test_the_models_learn_what_they_will_be_asked(wkm: Any) -> None:
    role, learned = wkm.samples["knowledge-model"]
    steps = sum(len(shown.steps) for shown in kit.demos_of(3))
    assert role == "knowledge"
    assert Counter(s.kind for s in learned) == {"task_knowledge": 3, "state_knowledge": steps}
    settings, count = wkm.method.settings(), wkm.session.counting.count_tokens
    shown = next(one for one in kit.demos_of(3) if one.task == learned[0].task)
    view = next(views_of(shown, count))[0]
    assert learned[0].messages == task_request(view, settings).messages
    states = [s for s in learned if s.kind == "state_knowledge" and s.task == shown.task]
    assert states[0].messages == state_request(view, settings).messages
    role, acting = wkm.samples["agent-model"]
    first = next(s for s in acting if s.task == shown.task)
    agent = WKMAgent(settings)
    told = learned[0].text
    talk = scripted["converse_with"](
        agent,
        view,
        lambda request: (
            (told if "task" in request.purpose else "Hm.")
            if hasattr(request, "sampling")
            else (1.0,) * len(request.words)
        ),
    )
    acted = [one for one in talk.requests if one.purpose not in KNOWING]
    assert first.messages == acted[0].messages and role == "agent"
    assert told.removeprefix("When ")[:2] in first.messages[-1].content


def test_the_base_has_the_writer_s_words(wkm: Any) -> None:
    base = list(KnowledgeBase.load(wkm.out / "knowledge.jsonl"))
    assert len(base) == sum(len(shown.steps) for shown in kit.demos_of(3))
    assert all("(state)" in entry.knowledge for entry in base)
    assert base[0].previous_action == "" and base[1].previous_action == base[0].action


def test_settings_of_the_published_wkm() -> None:
    assert WKMTraining().trains_knowledge and WKMTraining().neighbours == 3000
