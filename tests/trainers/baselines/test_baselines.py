"""Whole trainings of baselines: their stages, what they leave behind, and that they are resumed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comap.agents import KnowledgeBase
from comap.errors import DataNotFound, OptionError
from comap.lm.encoder import TransformerEncoder
from comap.trainers.baselines import run_class
from comap.trainers.baselines.config import baseline_preset
from comap.trainers.baselines.itp import DepthExample, Played, observation_at, td_targets
from comap.trainers.baselines.itp_trainer import DepthTrainer, OnlineTrainer
from comap.trainers.baselines.wkm import KNOWLEDGE, WKMRun
from comap.trainers.samples import Update
from kits import learning
from kits.tiny_encoder import write_tiny_encoder
from kits.trainings import demos_of, files_of, make_env, opened

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

FEW = {
    "sft": {"train_world_model": True},
    "iwm": {"explored": 2, "alternatives": 2},
    "wkm": {},
    "itp": {
        "labelled": 2,
        "episodes": 2,
        "episodes_per_update": 1,
        "micro_batches": 2,
        "reply_tokens": 6,
        "k_max": 1,
        "predict_tokens": 8,
        "warmup_epochs": 1,
        "world_model_epochs": 1,
    },
    "webevolver": {
        "demonstrations": 3,
        "tasks_per_round": 1,
        "imagined_depth": 2,
        "predict_tokens": 4,
        "critic_tokens": 2,
        "candidates": 2,
        "rounds": 1,
        "imagined_from": 1,
        "scored_transitions": 1,
    },
}
STAGES = {
    "sft": ["warmup-policy", "world-model"],
    "iwm": ["warmup-explorer", "exploration", "world-modelling", "imitation"],
    "wkm": ["state-knowledge", "agent-model"],
    "itp": ["warmup-policy", "world-model", "foresight", "depths", "supervised", "online"],
    "webevolver": [
        *("round-0-world-model", "round-0-policy", "round-0-evaluation"),
        *("round-1-play", "round-1-world-model", "round-1-imagine", "round-1-policy"),
        "round-1-evaluation",
    ],
}
LEFT = {
    "sft": {"agent", "wm"},
    "iwm": {"agent"},
    "wkm": {"agent"},
    "itp": {"agent", "wm", "k_head.safetensors", "value_head.safetensors"},
    "webevolver": {"agent", "wm"},
}


def training(method, model, out, settings=None, **options):
    shared = {
        "epochs": 1,
        "evaluation_tasks": 1,
        "evaluation_splits": ("valid_seen",),
    }
    config = baseline_preset(method, "tiny", **shared, **FEW[method], **(settings or {}))
    roles = opened(config, model, config.roles())
    return run_class(method)(config, roles, make_env, demos_of(3), out, **options)


@pytest.mark.parametrize("method", STAGES)
def test_a_training_and_its_second_start(method, player, tmp_path):
    summary = training(method, player, tmp_path / "run").run()
    last = "look-ahead" if method == "webevolver" else "evaluation"
    assert list(summary["stages"]) == [*STAGES[method], last]
    assert summary["results"]["valid_seen"]["episodes"] == 1
    assert {path.name for path in (tmp_path / "run" / "models").iterdir()} == LEFT[method]
    files = files_of(tmp_path / "run")
    events = []
    assert training(method, player, tmp_path / "run", tell=events.append).run() == summary
    assert {event["event"] for event in events} == {"known"}
    assert files_of(tmp_path / "run") == files


def test_wkm_encodes_its_knowledge_base_once(player, tmp_path, monkeypatch):
    encoder, out = str(write_tiny_encoder(tmp_path / "encoder")), tmp_path / "run"
    settings = {"encoder": encoder}
    encoded = []
    encode = TransformerEncoder.encode

    def noted(self, texts, side):
        encoded.extend(texts)
        return encode(self, texts, side)

    monkeypatch.setattr(TransformerEncoder, "encode", noted)
    with monkeypatch.context() as killed:
        killed.setattr(WKMRun, "train_agent", lambda self, stage: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            training("wkm", player, out, settings).run()
    texts = list(dict.fromkeys(encoded))
    assert encoded == texts and len(texts) > 3
    encoded.clear()
    summary = training("wkm", player, out, settings).run()
    assert encoded[0] == texts[0] and summary["results"]["valid_seen"]["episodes"] == 1
    assert set(encoded[1:]).isdisjoint(texts[1:])  # the states of another task
    base = KnowledgeBase.load(out / KNOWLEDGE, encoder)
    assert list(dict.fromkeys(entry.knowledge for entry in base)) == texts
    with pytest.raises(OptionError, match="encoder"):
        training("wkm", player, out).run()
    with pytest.raises(DataNotFound, match="sentence encoder"):
        training("wkm", player, tmp_path / "other", {"encoder": str(tmp_path / "none")}).run()


def test_wkm_with_a_knowledge_model(player, tmp_path):
    settings = {
        "weights": "lora",
        "task_knowledge": True,
        "state_knowledge": "lm",
        "knowledge_temperature": 1.0,  # an untrained model's best text is empty
        "task_tokens": 24,
        "state_tokens": 12,
        "sampler": "policy",
    }
    stages = training("wkm", player, tmp_path / "run", settings).run()["stages"]
    assert list(stages) == [
        *("rollouts", "task-knowledge", "state-knowledge", "knowledge-model", "agent-model"),
        "evaluation",
    ]
    steps = sum(len(episode.steps) for episode in demos_of(3))
    base = list(KnowledgeBase.load(tmp_path / "run" / KNOWLEDGE))
    stated_count = sum(entry.knowledge != "" for entry in base)
    assert len(base) == steps and stated_count > steps / 2
    learned = stages["knowledge-model"]["samples"]
    assert learned["state_knowledge"] == stated_count and 0 < learned["task_knowledge"] <= 3
    assert stages["agent-model"]["samples"] == {"expert_action": steps}
    assert {path.name for path in (tmp_path / "run" / "models").iterdir()} == {"agent", "knowledge"}


def test_demonstrations_of_another_split_are_refused(player, tmp_path):
    config = baseline_preset("sft", "tiny", train_split="valid_seen")
    roles = opened(config, player, config.roles())
    with pytest.raises(OptionError, match="learns from nothing else"):
        run_class("sft")(config, roles, make_env, demos_of(1), tmp_path)


def test_itp_by_hand():
    assert td_targets([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], 0.5) == [11.0, 17.0, 3.0]
    observations = [observation_at(["a", "b", "c"], 1, k) for k in range(1, 4)]
    assert observations == ["b", "c", "c"]


@pytest.fixture
def roles(tmp_path):
    """Small models whose weights are doubles, and the log-probabilities of a plain forward pass."""
    return learning.opened(learning.model_folder(tmp_path / "tiny"), "full")


def chances(roles, row):
    """The log-probability of each token of a row's answer, and the state at its control's end."""
    with torch.no_grad(), roles.using("agent", training=False):
        model, start = roles.module("agent"), len(row.prompt)
        logs = model(input_ids=torch.tensor([row.prompt + row.answer])).logits[0].log_softmax(-1)
        read = model(input_ids=torch.tensor([row.control or (1,)]), output_hidden_states=True)
    logprobs = [
        float(logs[start + position - 1, token]) for position, token in enumerate(row.answer)
    ]
    return logprobs, read.hidden_states[-1][0, -1]


def layer(roles, outputs):
    torch.manual_seed(outputs)
    return torch.nn.Linear(roles.base("agent").config.hidden_size, outputs).double()


ROWS = [
    DepthExample((9, 11, 8), (20, 5), (True, True), control=(9, 7), depth=1),
    DepthExample((9, 8), (21, 22, 5), (False, True, True), 0.5),
]


def test_the_supervised_loss_of_itp_by_hand(roles, tmp_path):
    """The mean over rows of ``weight nll + 0.5 CE(K)``."""
    head = layer(roles, 3)
    trainer_options = learning.settings(roles, tmp_path, [], role="agent", accumulate=1)
    trainer_options |= {"epochs": [ROWS], "plan": [Update(0, ((0, 1),))]}
    trainer = DepthTrainer(**trainer_options, depth_weight=0.5, head=head)
    (first, state), (second, _) = (chances(roles, row) for row in ROWS)
    depth = -float(head(state).log_softmax(-1)[1].detach())
    expected = -sum(first) / 2 - 0.5 * sum(second[1:]) / 2 + 0.5 * depth
    loss = trainer.training_step(trainer.model, {})
    assert float(loss) == pytest.approx(expected / 2, abs=1e-9)
    trainer.close()


def test_the_online_loss_of_itp_by_hand(roles, tmp_path):
    """The mean over steps of ``-A (log pi(a) + log p(K)) + (target - V)^2 / 2 - 0.01 H(K)``."""
    head = torch.nn.ModuleDict({"depth": layer(roles, 3), "value": layer(roles, 1)})
    worth = {"target": 0.7, "advantage": -0.4, "depth": 2, "control": (9, 7, 8)}
    rows = [replace(ROWS[0], **worth), replace(ROWS[1], scored=(True,) * 3, **worth)]
    trainer_options = learning.settings(roles, tmp_path, [], role="agent", accumulate=1)
    played = Played(tuple(rows), 1, 0.5, 1, 0)
    parts = {key: value for key, value in trainer_options.items() if key not in ("epochs", "plan")}
    trainer = OnlineTrainer(
        **parts, play=lambda update: played, updates=1, parts=1, entropy_weight=0.01, head=head
    )
    expected = 0.0
    for row in rows:
        tokens, state = chances(roles, row)
        logs = head["depth"](state).log_softmax(-1).detach()
        value = float(head["value"](state).detach())
        expected += 0.4 * (sum(tokens) + float(logs[2])) + (0.7 - value) ** 2 / 2
        expected += 0.01 * float((logs.exp() * logs).sum())
    loss = trainer.training_step(trainer.model, {})
    assert float(loss) == pytest.approx(expected / 2, abs=1e-9)
    trainer.close()
