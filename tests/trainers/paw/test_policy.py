"""The policy of a PaW training: its weights, and what it begins with."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from comap.errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from comap.lm import Generate, Message, Sampling
from comap.lm.chat import ChatTokenizer
from comap.lm.tiny import build_tiny
from comap.trainers.paw import warmup
from comap.trainers.paw.config import preset
from comap.trainers.paw.training import Policy
from comap.trainers.paw.warmup import warmed_up
from comap.trainers.setup import Environments, expert_demonstrations

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

WORDS = ["look go to open take put cabinet fridge apple 1 2 3 you see nothing happens"] * 3
ASKED = [Generate((Message("user", "You see a fridge 1."),), Sampling(max_new_tokens=6, seed=3))]
GENERATED = Environments("comap/ALFWorld-v0", {"source": "generated", "max_episode_steps": 6})


def tiny(**changed):
    return preset("tiny", **{"warmup_tokens": 0, "lora": {"r": 2}, **changed})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("policy") / "tiny"
    return build_tiny(place, WORDS, parameters=200_000, seed=0, vocabulary=320)


def opened(folder, **changed):
    return Policy(tiny(**changed), folder, device="cpu")


def moved(model, name_part=""):
    """Change a model's weights as training might, and return them."""
    draw = torch.Generator().manual_seed(5)
    for name, weight in model.named_parameters():
        if name_part in name:
            weight.data += 0.05 * torch.randn(weight.shape, generator=draw).to(weight.dtype)
    return weights_of(model)


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def reply_of(policy):
    (reply,) = policy.language_model().generate(ASKED)
    assert not isinstance(reply, LanguageModelError)
    return reply.token_ids, [round(logprob, 4) for logprob in reply.logprobs]  # single precision


def test_a_saved_policy_is_opened_as_it_was(folder, tmp_path):
    policy = opened(folder)
    before = reply_of(policy)
    weights, target = moved(policy.model), tmp_path / "agent"
    target.mkdir()
    (target / "old.txt").write_text("of an earlier session")
    (tmp_path / "agent.part").mkdir()
    (tmp_path / "agent.part" / "half.txt").write_text("written when it was killed")
    policy.save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]
    assert not {"old.txt", "half.txt"} & {path.name for path in target.iterdir()}
    reopened = opened(target)
    assert same(weights_of(reopened.model), weights) and reopened.ends == policy.ends
    assert reopened.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    assert reply_of(reopened) == reply_of(policy) != before
    loaded = opened(folder)
    loaded.load(target)
    assert same(weights_of(loaded.model), weights) and reply_of(loaded) == reply_of(policy)


def followed(folder):
    """Return a policy with an adapter that has learned something, after its trainer was made."""
    from peft import get_peft_model

    policy = opened(folder, weights="lora")
    torch.manual_seed(0)
    model = get_peft_model(policy.model, policy.adapters())
    moved(model, name_part="lora_B")
    accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    policy.follow(SimpleNamespace(model=model, accelerator=accelerator))
    return policy


def test_an_adapter_acts_is_saved_and_loaded(folder, tmp_path):
    policy = followed(folder)
    model = policy.model
    tokens, logprobs = reply_of(policy)
    (prompt,) = ChatTokenizer(policy.tokenizer).prompts(ASKED)
    ids = torch.tensor([[*prompt, *tokens]])

    def read():
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()
        return torch.log_softmax(logits, -1)[range(len(tokens)), list(tokens)].tolist()

    assert logprobs == pytest.approx(read(), abs=1e-4)
    with model.disable_adapter():
        assert logprobs != pytest.approx(read(), abs=1e-2), "the adapter acts, not its base"

    policy.save(tmp_path / "agent")
    names = {path.name for path in (tmp_path / "agent").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    loaded = opened(folder, weights="lora")
    loaded.load(tmp_path / "agent")
    assert same(weights_of(loaded.model), weights_of(model)) and reply_of(loaded) == (
        tokens,
        logprobs,
    )


def half(path):
    path.write_bytes(path.read_bytes()[:1000])


def foreign(path):
    from safetensors.torch import save_file

    save_file({"something.else": torch.ones(2)}, path)


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.parametrize("damage", [Path.unlink, half, foreign])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_damaged_checkpoint_is_told(kind, damage, folder, tmp_path):
    saved = followed(folder) if kind == "lora" else opened(folder)
    place = tmp_path / "checkpoint-1"
    saved.save(place)
    name = "adapter_model.safetensors" if kind == "lora" else "model.safetensors"
    damage(place / name)
    with pytest.raises(DataCorrupt, match=r"checkpoint-1, found .*; remove that folder"):
        opened(folder, weights=kind).load(place)


def test_weights_have_the_precision_of_the_settings(folder):
    """What is trained is kept in single precision at least."""
    for weights, precision, dtype_name in (
        ("full", "auto", "float32"),
        ("full", "float64", "float64"),
        ("full", "bfloat16", "float32"),
        ("lora", "auto", "float32"),
        ("lora", "bfloat16", "bfloat16"),
    ):
        policy = opened(folder, weights=weights, precision=precision)
        assert {weight.dtype for weight in policy.model.parameters()} == {
            getattr(torch, dtype_name)
        }


def refused(model, make_env, out, **changed):
    with pytest.raises(OptionError) as refusal:
        warmed_up(preset("tiny", **changed), model, make_env, out, lambda event: None)
    assert not list(out.iterdir()) and len(str(refusal.value).splitlines()) == 1
    return str(refusal.value)


def test_a_warm_up_that_cannot_be_is_refused(folder, tmp_path):
    assert "add --model" in refused(None, GENERATED, tmp_path, warmup_tokens=0)
    tags = {"prompts": "standard", "state_text": "history", "form": "asked"}
    assert "prompts='brief'" in refused(folder, GENERATED, tmp_path, warmup_tokens=9, **tags)
    assert "Environments" in refused(folder, lambda split: None, tmp_path, warmup_tokens=9)
    assert "'Qwen/Qwen3-4B'" in refused("Qwen/Qwen3-4B", GENERATED, tmp_path, warmup_tokens=9)


def test_a_model_is_warmed_up_once(folder, tmp_path):
    config = preset("tiny", warmup_tokens=2000, demonstrations=2)
    events = []
    (tmp_path / "model.part").mkdir()
    (tmp_path / "model.part" / "half.txt").write_text("written when it was killed")
    warm_folder = warmed_up(config, folder, GENERATED, tmp_path, events.append)
    assert warm_folder == tmp_path / "model" and not (tmp_path / "model.part").exists()
    assert not (warm_folder / "half.txt").exists()
    demonstrated = [event for event in events if event["event"] == "demonstration"]
    learned = [event for event in events if event["event"] == "warmup"]
    assert [(event["done"], event["of"]) for event in demonstrated] == [(1, 2), (2, 2)]
    assert learned[-1]["done"] >= learned[-1]["of"] == 2000
    first = opened(Path(warm_folder))
    assert not same(weights_of(first.model), weights_of(opened(folder).model))
    events.clear()
    assert (
        warmed_up(config, folder, GENERATED, tmp_path, events.append) == warm_folder and not events
    )
    shutil.rmtree(warm_folder)
    warmed_up(config, folder, GENERATED, tmp_path, events.append)
    assert same(weights_of(opened(Path(warm_folder)).model), weights_of(first.model)), (
        "the same again"
    )


def test_every_process_is_there_where_a_model_is_built(folder, tmp_path, monkeypatch):
    """Building waits for all processes: one that did not build would be waited for, for ever."""
    calls = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(warmup, "wait", lambda: calls.append("wait"))
    monkeypatch.setattr(warmup, "tiny_for_training", lambda *_, **__: calls.append("build"))
    config = preset("tiny", warmup_tokens=500, demonstrations=1)
    warmed_folder = warmed_up(
        config, None, GENERATED, tmp_path, lambda event: calls.append("event")
    )
    assert warmed_folder == tmp_path / "model" and calls == ["build", "wait"]


def test_demonstrations_may_come_from_a_file(folder, tmp_path, monkeypatch):
    all_events = []
    arguments = (preset("tiny", warmup_tokens=500), folder, GENERATED, tmp_path, all_events.append)
    path = tmp_path / "demos.jsonl"
    with pytest.raises(DataNotFound, match=r"demos\.jsonl"):
        warmed_up(*arguments, demos=path)
    path.write_text('{"game": "train/kind/trial/game.tw-pddl", "steps": [{"command": "look"}]}\n')
    with pytest.raises(DataNotFound, match="found none of its"):
        warmed_up(*arguments, demos=path)
    env = GENERATED.demonstrating()("train")
    demonstrations = expert_demonstrations(env, env.get_wrapper_attr("tasks").ids[:3])
    plans = [
        (episode.task, tuple(step.action for step in episode.steps)) for episode in demonstrations
    ]
    plans[1] = (plans[1][0], ("look",))  # does not succeed: left out
    monkeypatch.setattr("comap.trainers.setup.read_demonstrations", lambda file: iter(plans))
    warmed_up(*arguments, demos=path)
    events = [event for event in all_events if event["event"] == "demonstration"]
    assert [(event["done"], event["won"]) for event in events] == [(1, 1), (2, 1), (3, 2)]
