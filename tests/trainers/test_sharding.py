"""Two processes that share each weight (FSDP2) end as one process does that has them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.errors import OptionError
from comap.lm import Generate, Sampling
from comap.trainers import sharding
from comap.trainers.baselines import run_class
from comap.trainers.baselines.config import baseline_preset
from comap.trainers.comap.coevolution import CoEvolution
from comap.trainers.config import Optimization, changed
from kits import learning, paw, processes, sharded, trainings

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from comap.trainers.row_trainer import trainer_arguments  # noqa: E402

CLOSE = 1e-6


@pytest.fixture(scope="module")
def paw_model(tmp_path_factory):
    return paw.model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def together(model, paw_model, player, tmp_path_factory):
    """What two processes made of all trainings."""
    out = tmp_path_factory.mktemp("two")
    arguments = [str(path) for path in (model, paw_model, player, out)]
    processes.together(Path(sharded.__file__), *arguments, env=sharded.VARIABLES)
    return out


def weights_at(folder):
    return torch.load(folder / "weights.pt", weights_only=True)


def apart(weights, others):
    """The largest difference between two sets of weights of the same names."""
    assert weights.keys() == others.keys()
    differences = []
    for part, tensors in weights.items():
        assert list(tensors) == list(others[part])
        differences += [
            (weight.detach() - others[part][name]).abs().max() for name, weight in tensors.items()
        ]
    return float(max(differences))


def log_at(folder):
    """The lines of a log, without how much of a process's passes is padding."""
    lines = json.loads((folder / "log.json").read_text())
    return [{key: value for key, value in line.items() if key != "padding"} for line in lines]


def check_log(log, folder):
    lines = log_at(folder)
    assert len(log) == len(lines)
    for line, log_line in zip(lines, log, strict=True):
        assert line == pytest.approx({key: log_line[key] for key in line}, rel=1e-6, abs=1e-6)


def check_resumed(folder):
    """One that goes on from a checkpoint ends as one that was not interrupted, to the bit."""
    assert apart(weights_at(folder / "whole"), weights_at(folder / "rest")) == 0
    logs = [json.loads((folder / name / "log.json").read_text()) for name in ("whole", "rest")]
    assert logs[1] == logs[0][-len(logs[1]) :]


def check_as_by_one_process(folder, single):
    """Weights and log are those of one process, and a training that goes on ends the same."""
    assert apart(single["weights"], weights_at(folder / "whole")) < CLOSE
    check_log(single["log"], folder / "whole")
    check_resumed(folder)


@processes.needs_gloo
@pytest.mark.parametrize("training_name", sharded.ROWS)
def test_roles_are_trained_as_by_one_process(training_name, model, together, tmp_path):
    """Both objectives of CoMap, the teacher that follows, and a head; SFT is as the warm-up."""
    single = sharded.on_rows(training_name, model, tmp_path)
    check_as_by_one_process(together / training_name, single)


@processes.needs_gloo
@pytest.mark.parametrize("training_name", sharded.PAW)
def test_a_policy_is_trained_as_by_one_process(training_name, paw_model, together, tmp_path):
    """Several mini-batches an update, a reference, adapters."""
    single = sharded.on_episodes(training_name, paw_model, tmp_path)
    check_as_by_one_process(together / training_name, single)


@processes.needs_gloo
def test_whole_trainings_end_as_those_of_one_process(player, together, tmp_path):
    imitated = sharded.imitation(player, tmp_path / "sft")
    assert apart(imitated["weights"], weights_at(together / "sft")) < CLOSE
    co_evolved = sharded.whole_training(player, tmp_path / "comap")
    assert apart(co_evolved["weights"], weights_at(together / "comap")) < CLOSE


@processes.needs_gloo
@pytest.mark.parametrize(
    ("training_name", "part", "folder"),
    [
        ("distill-full", "wm", "models/wm"),
        ("grpo-full", "agent", f"checkpoints/checkpoint-{sharded.UPDATES}"),
    ],
)
def test_transformers_reads_what_was_left(training_name, part, folder, together):
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        together / training_name / "whole" / folder, dtype="auto"
    )
    weights = weights_at(together / training_name / "whole")[part]
    assert apart({part: dict(loaded.named_parameters())}, {part: weights}) == 0
    assert not loaded.config.architectures[0].startswith("FSDP")


@processes.needs_gloo
@pytest.mark.parametrize(
    ("base", "training_name", "folder"),
    [
        ("model", "policy-lora", "models/agent"),
        ("paw_model", "gigpo-lora", f"checkpoints/checkpoint-{sharded.UPDATES}"),
    ],
)
def test_peft_reads_what_was_left(base, training_name, folder, together, request):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    path = request.getfixturevalue(base)
    bare = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    adapted = PeftModel.from_pretrained(
        bare, together / training_name / "whole" / folder, autocast_adapter_dtype=False
    )
    weights = weights_at(together / training_name / "whole")["agent"]
    loaded = [weight for name, weight in adapted.named_parameters() if ".lora_" in name]
    for weight, expected in zip(loaded, weights.values(), strict=True):
        assert torch.equal(weight, expected)


def launched(monkeypatch, **variables):
    for name, value in {"WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "found DeepSpeed; write distributed_type: FSDP"),
        (
            {**sharded.VARIABLES, "FSDP_VERSION": "1"},
            "found version 1 of FSDP; write fsdp_version: 2",
        ),
        (
            {**sharded.VARIABLES, "FSDP_OFFLOAD_PARAMS": "true"},
            "write fsdp_offload_params: false",
        ),
        (
            {**sharded.VARIABLES, "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"},
            "write fsdp_cpu_ram_efficient_loading: false",
        ),
    ],
)
def test_both_trainers_refuse_other_launches(variables, message, paw_model, tmp_path, monkeypatch):
    launched(monkeypatch, **variables)
    with pytest.raises(OptionError, match=message):
        trainer_arguments(tmp_path, Optimization(accumulate=2), 1e-3, seed=0, use_cpu=True)
    with pytest.raises(OptionError, match=message):
        paw.trained(paw.settings(), paw_model, tmp_path)


def test_what_cannot_be_sharded_is_refused(model, paw_model, player, tmp_path, monkeypatch):
    """Before anything is trained, with what to write instead."""
    config = trainings.small(weights="lora", exact=False, p_source="verbalizer")
    roles = trainings.opened(config, player, config.roles())
    launched(monkeypatch, **sharded.VARIABLES)
    parts = (roles, trainings.make_env, trainings.demos_of(3), tmp_path)
    with pytest.raises(OptionError, match=r"the engine hf, .* --engine vllm .* --engine http"):
        CoEvolution(config, *parts)
    with pytest.raises(OptionError, match=r"set agent\.p_source=verbalizer"):
        CoEvolution(changed(config, {"p_source": "head"}), *parts)
    with pytest.raises(OptionError, match=r"expected PaW, SFT or CoMap .* found IWMRun"):
        run_class("iwm")(baseline_preset("iwm", "tiny"), *parts)
    with pytest.raises(OptionError, match="expected another algorithm than ppo"):
        paw.trained(paw.settings(algorithm="ppo"), paw_model, tmp_path)

    lm = roles.language_model()
    assert lm.count_tokens("take the mug") > 0
    with pytest.raises(OptionError, match="cannot sample by itself"):
        lm.generate([Generate(learning.question_about("mug"), Sampling(4))])


def test_one_process_has_whole_models(monkeypatch):
    launched(monkeypatch, **sharded.VARIABLES, WORLD_SIZE="1")
    assert not sharding.is_sharded()
