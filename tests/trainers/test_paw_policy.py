"""The policy of a PaW training, and what it begins with."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from comap.agents import AgentConfig
from comap.agents.paw import PaWAgent, PaWConfig
from comap.agents.react import ReActAgent
from comap.errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from comap.lm import Generate, Message, Sampling
from comap.lm.shipped import folder_of
from comap.lm.tiny import build_tiny
from comap.trainers.paw import beginning, training
from comap.trainers.paw.beginning import warmed_up
from comap.trainers.paw.config import PaWTraining
from comap.trainers.paw.policy import Policy
from comap.trainers.paw.presets import paw_preset
from comap.trainers.paw.training import train
from comap.trainers.setup import Environments

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

WORDS = ["look go to open take put cabinet fridge apple 1 2 3 you see nothing happens"] * 3
ASKED = [Generate((Message("user", "You see a fridge 1."),), Sampling(max_new_tokens=6, seed=3))]
GENERATED = Environments("comap/ALFWorld-v0", {"source": "generated", "max_episode_steps": 6})


def tiny(**changed: Any) -> PaWTraining:
    return paw_preset("tiny", warmup_tokens=0, lora_r=2, **changed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("policy") / "tiny"
    return build_tiny(place, WORDS, parameters=200_000, seed=0, vocabulary=320)


def opened(folder: Path, **changed: Any) -> Policy:
    return Policy.open(tiny(**changed), folder, device="cpu")


def moved(model: Any, only: str = "") -> dict[str, Any]:
    """Change a model's weights as training might, and return them."""
    draw = torch.Generator().manual_seed(5)
    for name, weight in model.named_parameters():
        if only in name:
            weight.data += 0.05 * torch.randn(weight.shape, generator=draw).to(weight.dtype)
    return weights_of(model)


def weights_of(model: Any) -> dict[str, Any]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def same(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def said(policy: Policy) -> Any:
    (reply,) = policy.language_model().generate(ASKED)
    assert not isinstance(reply, LanguageModelError)
    return reply.token_ids, reply.logprobs


# -- weights -------------------------------------------------------------------------------------


def test_a_saved_policy_is_opened_as_it_was(folder: Path, tmp_path: Path) -> None:
    policy = opened(folder)
    before = said(policy)
    weights, target = moved(policy.model), tmp_path / "agent"
    target.mkdir()
    (target / "old.txt").write_text("of an earlier session")
    (tmp_path / "agent.part").mkdir()
    (tmp_path / "agent.part" / "half.txt").write_text("written when it was killed")
    policy.save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]
    assert not {"old.txt", "half.txt"} & {path.name for path in target.iterdir()}
    again = opened(target)
    assert same(weights_of(again.model), weights) and again.ends == policy.ends
    assert again.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    assert said(again) == said(policy) != before


def test_a_checkpoint_takes_the_place_of_the_weights(folder: Path, tmp_path: Path) -> None:
    other = opened(folder)
    weights = moved(other.model)
    other.model.save_pretrained(tmp_path / "checkpoint-3")
    policy = opened(folder)
    before = said(policy)
    policy.load(tmp_path / "checkpoint-3")
    assert same(weights_of(policy.model), weights)
    assert said(policy) == said(other) != before


def adapted(folder: Path) -> tuple[Policy, Any]:
    """Return a policy with an adapter that has learned something, and its trainer's model."""
    from peft import get_peft_model

    policy = opened(folder, weights="lora")
    torch.manual_seed(0)
    model = get_peft_model(policy.model, policy.adapters())
    moved(model, only="lora_B")
    return policy, model


class Trainer:
    """What a policy sees of a trainer."""

    def __init__(self, model: Any) -> None:
        self.model = self.accelerator = model

    @staticmethod
    def unwrap_model(model: Any) -> Any:
        return model


def followed(folder: Path) -> Policy:
    policy, model = adapted(folder)
    trainer = Trainer(model)
    trainer.accelerator = Trainer
    policy.follow(trainer)
    return policy


def test_an_adapter_acts_is_saved_and_loaded(folder: Path, tmp_path: Path) -> None:
    policy = followed(folder)
    model = policy.model
    tokens, logprobs = said(policy)
    ids = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": "You see a fridge 1."}], add_generation_prompt=True
    )
    prompt = ids if isinstance(ids, list) else ids["input_ids"]
    read = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = model(input_ids=read).logits[0, len(prompt) - 1 : -1]
    own = torch.log_softmax(logits.double(), -1)[range(len(tokens)), list(tokens)]
    assert logprobs == pytest.approx(own.tolist(), abs=1e-4), "the adapter acts, not its base"
    with torch.no_grad(), model.disable_adapter():
        logits = model(input_ids=read).logits[0, len(prompt) - 1 : -1]
    base = torch.log_softmax(logits.double(), -1)[range(len(tokens)), list(tokens)]
    assert logprobs != pytest.approx(base.tolist(), abs=1e-2)

    policy.save(tmp_path / "agent")
    names = {path.name for path in (tmp_path / "agent").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    again = opened(folder, weights="lora")
    again.load(tmp_path / "agent")
    assert same(weights_of(again.model), weights_of(model)) and said(again) == (tokens, logprobs)
    again.save(tmp_path / "again")
    first, second = (
        (tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("agent", "again")
    )
    assert first == second


def test_adapters_are_as_the_settings_say(folder: Path) -> None:
    assert opened(folder).adapters() is None
    made = opened(folder, weights="lora", lora_alpha=6, lora_dropout=0.25).adapters()
    assert (made.r, made.lora_alpha, made.lora_dropout) == (2, 6, 0.25)
    assert (made.target_modules, made.task_type) == ("all-linear", "CAUSAL_LM")


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def foreign(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"something.else": torch.ones(2)}, path)


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.parametrize("damage", [Path.unlink, half, foreign])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_damaged_checkpoint_is_told(
    kind: str, damage: Callable[[Path], None], folder: Path, tmp_path: Path
) -> None:
    saved = followed(folder) if kind == "lora" else opened(folder)
    place = tmp_path / "checkpoint-1"
    saved.save(place)
    name = "adapter_model.safetensors" if kind == "lora" else "model.safetensors"
    damage(place / name)
    with pytest.raises(DataCorrupt, match=r"checkpoint-1, found .*; remove that folder"):
        opened(folder, weights=kind).load(place)


@pytest.mark.parametrize(
    ("weights", "precision", "wanted"),
    [
        ("full", "auto", "float32"),
        ("full", "float32", "float32"),
        ("full", "float64", "float64"),
        ("full", "bfloat16", "float32"),  # what is trained is kept in single precision
        ("lora", "auto", "float32"),
        ("lora", "float64", "float64"),
        ("lora", "bfloat16", "bfloat16"),
    ],
)
def test_weights_have_the_precision_of_the_settings(
    weights: str, precision: str, wanted: str, folder: Path
) -> None:
    policy = opened(folder, weights=weights, precision=precision)
    assert {weight.dtype for weight in policy.model.parameters()} == {getattr(torch, wanted)}


@pytest.mark.parametrize(
    ("device", "size", "gpus", "wanted"),
    [
        ("auto", "2", True, "cuda:1"),
        ("auto", "2", False, "cpu"),
        ("auto", "1", True, "auto"),
        ("cpu", "2", True, "cpu"),
    ],
)
def test_each_process_has_its_own_gpu(
    device: str, size: str, gpus: bool, wanted: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def device_of(name: str) -> Any:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr("comap.lm.hf_load.device_of", device_of)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setenv("LOCAL_RANK", "1")
    Policy.open(tiny(), folder, device=device)
    assert asked == [wanted]


# -- how it acts ---------------------------------------------------------------------------------


def test_tags_are_written_by_the_agent_of_the_paper(folder: Path) -> None:
    config = PaWTraining(history_turns=3, prompt_tokens=100, response_tokens=20, seed=4)
    agent = Policy.open(config, folder, device="cpu").agent()
    assert isinstance(agent, PaWAgent)
    assert agent.config == PaWConfig(
        history_turns=3,
        memory_turns=3,
        max_length=120,
        draft_tokens=20,
        temperature=1.0,
        seed=4,
    )


def test_brief_prompts_are_those_of_small_models(folder: Path) -> None:
    policy = opened(folder, response_tokens=8)
    agent = policy.agent(0.25)
    assert isinstance(agent, ReActAgent)
    config: AgentConfig = agent.config
    assert (config.prompts, config.state_text, config.form) == ("brief", "belief", "given")
    assert (config.draft_tokens, config.max_length) == (8, 1032)
    assert (config.temperature, config.top_p) == (0.25, 1.0)
    rollouts = policy.agent()
    assert isinstance(rollouts, ReActAgent) and rollouts.config.temperature == 1.0


# -- what it begins with -------------------------------------------------------------------------


def refused(model: Any, make_env: Any, out: Path, **changed: Any) -> str:
    with pytest.raises(OptionError) as told:
        warmed_up(paw_preset("tiny", **changed), model, make_env, out, lambda event: None)
    assert not list(out.iterdir()) and len(str(told.value).splitlines()) == 1
    return str(told.value)


def test_a_warm_up_that_cannot_be_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "add --model" in refused(None, GENERATED, tmp_path, warmup_tokens=0)
    tags = {"prompts": "tags", "state_text": "history", "form": "asked"}
    assert "prompts='brief'" in refused(folder, GENERATED, tmp_path, warmup_tokens=9, **tags)
    assert "Environments" in refused(folder, lambda split: None, tmp_path, warmup_tokens=9)
    assert "'Qwen/Qwen3-4B'" in refused("Qwen/Qwen3-4B", GENERATED, tmp_path, warmup_tokens=9)


def test_without_a_warm_up_a_training_begins_with_the_model(folder: Path, tmp_path: Path) -> None:
    for model in (folder, "Qwen/Qwen3-4B"):
        assert warmed_up(tiny(), model, GENERATED, tmp_path, lambda event: None) == model
    assert not list(tmp_path.iterdir())


def test_a_model_is_warmed_up_once(folder: Path, tmp_path: Path) -> None:
    config = paw_preset("tiny", warmup_tokens=2000, demonstrations=2)
    told: list[Mapping[str, Any]] = []
    (tmp_path / "model.part").mkdir()
    (tmp_path / "model.part" / "half.txt").write_text("written when it was killed")
    found = warmed_up(config, folder, GENERATED, tmp_path, told.append)
    assert found == tmp_path / "model" and not (tmp_path / "model.part").exists()
    assert not (found / "half.txt").exists()
    shown = [event for event in told if event["event"] == "demonstration"]
    learned = [event for event in told if event["event"] == "warmup"]
    assert [(one["done"], one["of"]) for one in shown] == [(1, 2), (2, 2)]
    assert learned[-1]["done"] >= learned[-1]["of"] == 2000
    assert learned[-1]["loss"] < learned[0]["loss"]
    first = opened(Path(found))
    assert not same(weights_of(first.model), weights_of(opened(folder).model))
    told.clear()
    assert warmed_up(config, folder, GENERATED, tmp_path, told.append) == found and not told
    shutil.rmtree(found)
    warmed_up(config, folder, GENERATED, tmp_path, told.append)
    assert same(weights_of(opened(Path(found)).model), weights_of(first.model)), "the same again"


def test_a_model_is_built_where_none_is_given(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def build(place: Path, env_id: str, **told: Any) -> Path:
        asked.append((place, env_id, told))
        return Path(shutil.copytree(folder, place, dirs_exist_ok=True))

    monkeypatch.setattr(beginning, "tiny_for_training", build)
    config = paw_preset("tiny", warmup_tokens=500, demonstrations=1, seed=3)
    warmed_up(config, None, GENERATED, tmp_path, lambda event: None)
    told = {"parameters": 500_000, "seed": 3}
    assert asked == [(tmp_path / "untrained", "comap/ALFWorld-v0", told)]


def test_every_process_is_there_where_a_model_is_built(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building waits for all processes: one that did not build would be waited for, for ever."""
    calls: list[str] = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(beginning, "wait", lambda: calls.append("wait"))
    monkeypatch.setattr(beginning, "tiny_for_training", lambda *_, **__: calls.append("build"))
    config = paw_preset("tiny", warmup_tokens=500, demonstrations=1)
    found = warmed_up(config, None, GENERATED, tmp_path, lambda event: calls.append("event"))
    assert found == tmp_path / "model" and calls == ["build", "wait"]


def test_demonstrations_may_come_from_a_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = paw_preset("tiny", warmup_tokens=500)

    def warm(out: str, file: Path) -> list[Mapping[str, Any]]:
        told: list[Mapping[str, Any]] = []
        (tmp_path / out).mkdir()
        warmed_up(config, folder, GENERATED, tmp_path / out, told.append, demos=file)
        return [event for event in told if event["event"] == "demonstration"]

    with pytest.raises(DataNotFound, match=r"demos\.jsonl"):
        warm("missing", tmp_path / "demos.jsonl")
    path = tmp_path / "demos.jsonl"
    path.write_text('{"game": "train/kind/trial/game.tw-pddl", "steps": [{"command": "look"}]}\n')
    with pytest.raises(DataNotFound, match="found none of its"):
        warm("others", path)

    from comap.trainers.demonstrations import expert_demonstrations

    env = GENERATED.demonstrating()("train")
    tasks = env.get_wrapper_attr("tasks").ids[:3]
    plans = [
        (one.task, tuple(step.action for step in one.steps))
        for one in expert_demonstrations(env, tasks)
    ]
    env.close()
    plans[1] = (plans[1][0], ("look",))  # does not succeed: left out
    monkeypatch.setattr("comap.trainers.setup.read_demonstrations", lambda file: iter(plans))
    shown = warm("right", path)
    assert [(one["done"], one["won"]) for one in shown] == [(1, 1), (2, 1), (3, 2)]


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"engine": "simulated"}, {"reward": "f1"}, {"context": "concat"}],
    ids=["engine", "reward", "context"],
)
def test_what_needs_search_is_refused_in_a_line(change: dict[str, Any], tmp_path: Path) -> None:
    config = PaWTraining(**change)
    ((name, value),) = change.items()
    with pytest.raises(OptionError) as told:
        train(config, model="some/model", make_env=GENERATED, out=tmp_path / "out")
    assert f"{name}={value!r} is for search QA" in str(told.value)
    assert len(str(told.value).splitlines()) == 1 and not (tmp_path / "out").exists()


def test_a_training_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="add --model"):
        train(tiny(), model=None, make_env=GENERATED, out=tmp_path / "out", device="cpu")


def test_more_groups_than_tasks_are_refused(folder: Path, tmp_path: Path) -> None:
    config = tiny(groups=100_000)
    with pytest.raises(OptionError, match="groups must be at most the number of training tasks"):
        train(config, model=folder, make_env=GENERATED, out=tmp_path / "out", device="cpu")


def test_the_policy_that_comap_ships_is_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("rich", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    from comap.cli import main

    asked: list[dict[str, Any]] = []

    def told(config: PaWTraining, **given: Any) -> Path:
        asked.append(given)
        raise OptionError("that is enough")

    monkeypatch.setattr(training, "train", told)
    words = ["train", "paw", "--preset", "tiny", "--out", str(tmp_path / "out"), "--model"]
    assert main([*words, "shipped:agent"]) == 1 and "that is enough" in capsys.readouterr().err
    described = asked[0]["about"]["model"]
    assert asked[0]["model"] == folder_of("shipped") and described["name"] == "shipped:agent"
    assert len(described["sha256"]) == 64
    assert main([*words, "shipped:nobody"]) == 1 and len(asked) == 1
    assert "expected shipped:agent or shipped:wm" in capsys.readouterr().err
