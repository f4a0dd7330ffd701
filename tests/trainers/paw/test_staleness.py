"""A training whose next rollouts are played while an update is trained, by an engine beside the model."""

from __future__ import annotations

import copy
import json
import threading

import pytest

from comap.errors import OptionError
from comap.lm.tiny import build_tiny
from comap.trainers.paw import training
from comap.trainers.paw.config import preset
from comap.trainers.setup import Environments

pytest.importorskip("torch")
pytest.importorskip("trl")

from comap.lm import EngineChoice, HFLanguageModel
from comap.trainers.paw.trainer import PaWTrainer
from comap.trainers.paw.training import Policy, train
from comap.trainers.sampling import Sampler

ENV = Environments("comap/ALFWorld-v0", {"source": "generated", "max_episode_steps": 2})
WAIT = 60.0  # seconds after which a test is taken for stuck


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    words = ["look go to open take put cabinet fridge apple 1 2 3 you see nothing happens"] * 3
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    return build_tiny(folder, words, parameters=200_000, seed=0, vocabulary=320)


def settings(**changed):
    sizes = {"groups": 1, "members": 2, "updates": 3, "max_episode_steps": 2, "draft_tokens": 4}
    defaults = {"warmup_tokens": 0, "evaluation_tasks": 0, "save_updates": 1, "staleness": 1}
    return preset("tiny", **{**sizes, **defaults, **changed})


class BesideTheModel(HFLanguageModel):
    """Weights of its own, as an engine has them; an answer may have to wait."""

    may_answer = threading.Event()
    was_asked = threading.Event()
    fault: Exception | None = None

    def _answer(self, requests):
        type(self).was_asked.set()
        assert type(self).may_answer.wait(WAIT)
        if type(self).fault is not None:
            raise type(self).fault
        return super()._answer(requests)


@pytest.fixture
def engine(monkeypatch):
    """Trainings sample by such an engine; what is sent, asked and trained is noted in order."""
    events = []
    choice = EngineChoice("vllm", "this test says so")
    sampler = Sampler(choice=choice)
    BesideTheModel.may_answer, BesideTheModel.was_asked = threading.Event(), threading.Event()
    BesideTheModel.fault = None

    def send(policy):
        events.append("send")
        weights = copy.deepcopy(policy.model)
        return BesideTheModel.from_model(weights, policy.tokenizer, name="beside")

    play = training._Training._play_update

    def played(self, update):
        events.append(f"play {update}")
        rollouts = play(self, update)
        events.append(f"played {update}")
        return rollouts

    monkeypatch.setattr(training, "_chosen_sampler", lambda *_: sampler)
    monkeypatch.setattr(Policy, "_in_engine", send)
    monkeypatch.setattr(training._Training, "_play_update", played)
    yield events


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_rollouts_and_training_overlap(engine, model, tmp_path, monkeypatch):
    """While an update is trained, the engine is asked for the next one, and answers only afterwards."""
    learn = PaWTrainer._mini_batches

    def trained(self, update):
        engine.append(f"train {update.number}")
        if update.number == 1:
            assert BesideTheModel.was_asked.wait(WAIT), "rollouts of the next update have begun"
            engine.append("asked meanwhile")
        BesideTheModel.may_answer.set()
        return learn(self, update)

    pause = training.RolloutsAhead.pause

    def paused(self, update):
        pause(self, update)
        if update == 1:
            BesideTheModel.was_asked.clear()
            BesideTheModel.may_answer.clear()

    monkeypatch.setattr(training.RolloutsAhead, "pause", paused)
    monkeypatch.setattr(PaWTrainer, "_mini_batches", trained)
    BesideTheModel.may_answer.set()
    train(settings(), model=model, make_env=ENV, out=tmp_path, device="cpu")

    order = engine.index
    assert order("play 1") < order("train 1") and "asked meanwhile" in engine
    assert order("train 1") < order("played 2"), "it could not be answered before"
    for update in (1, 2):
        send_place = [place for place, event in enumerate(engine) if event == "send"][update]
        assert order(f"played {update}") < send_place < order(f"train {update}")
    assert [(line["row_age"], line["row_age_max"]) for line in lines(tmp_path)] == [
        (0.0, 0.0),
        (1.0, 1.0),
        (1.0, 1.0),
    ]


def test_a_fault_of_the_thread_ends_the_training(engine, model, tmp_path, monkeypatch):
    play = training._Training._play_update

    def played(self, update):
        if update == 1:
            raise RuntimeError("the engine is gone")
        return play(self, update)

    monkeypatch.setattr(training._Training, "_play_update", played)
    BesideTheModel.may_answer.set()
    with pytest.raises(RuntimeError, match="the engine is gone"):
        train(settings(), model=model, make_env=ENV, out=tmp_path, device="cpu")
    assert [line["update"] for line in lines(tmp_path)] == [1]
    assert not any("play" in thread.name for thread in threading.enumerate())


def test_a_stopped_training_is_gone_on_with(engine, model, tmp_path):
    """Rollouts that were under way are played again: the next update's have the weights of now."""
    BesideTheModel.may_answer.set()
    train(settings(max_updates=2), model=model, make_env=ENV, out=tmp_path, device="cpu")
    assert not {"play 2"} & set(engine), "nobody learns from them"
    train(settings(), model=model, make_env=ENV, out=tmp_path, device="cpu")
    assert [(line["update"], line["row_age"]) for line in lines(tmp_path)] == [
        (1, 0.0),
        (2, 1.0),
        (3, 0.0),
    ]


def test_what_cannot_be_is_refused_in_words(model, tmp_path):
    with pytest.raises(
        OptionError, match="engine='hf': that is the model itself; give the address"
    ):
        train(settings(), model=model, make_env=ENV, out=tmp_path, device="cpu", engine="hf")
    with pytest.raises(OptionError, match=r"at temperature 1 alone, not 0\.7"):
        settings(agent={"temperature": 0.7})
