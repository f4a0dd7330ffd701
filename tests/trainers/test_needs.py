"""What a training needs: the sums, against models, against measured trainings, and on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from comap.benchmarks.what_it_takes import Asked, remedies, setup_of, shape_of, work_of
from comap.cli import main
from comap.errors import DataNotFound, OptionError
from comap.trainers import needs
from comap.trainers.comap.config import CoMapTraining
from comap.trainers.needs import SHAPES, Setup, Shape, memory, training_hours
from comap.trainers.paw.config import PaWTraining
from comap.trainers.sft import SFTTraining

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LARGE = SHAPES["Qwen/Qwen3-8B"]
QWEN_4B = Shape(36, 2560, 9728, 32, 8, 128, 151_936, True, has_head_norms=True)
FULL = Setup(weights="full", pass_tokens=8192)
LORA = Setup(weights="lora", pass_tokens=8192)
CARD = 80e9
TOLERANCE = 0.2
"""How far a sum may be from a measured peak; also said in docs/guides/what-it-takes.md."""


def gigabytes(setup: Setup, shape: Shape = LARGE) -> float:
    return memory(shape, setup, CARD).size / 1e9


def costs() -> dict[str, dict[str, object]]:
    jobs: dict[str, dict[str, object]] = json.loads((RESULTS / "gpu_costs.json").read_text())[
        "jobs"
    ]
    return jobs


# Shapes.


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_weights_of_a_shape_are_those_of_the_model(kind: str):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        kind,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        vocab_size=300,
        tie_word_embeddings=kind == "qwen2",
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    number = sum(weight.numel() for weight in model.parameters())
    if kind == "qwen2":  # has no head_dim of its own: the layers say it
        config.head_dim = model.model.layers[0].self_attn.head_dim
    assert Shape.of(config.to_dict() | {"head_dim": config.head_dim}).parameters == number


def test_known_shapes_have_the_weights_that_were_counted():
    jobs = costs()
    assert SHAPES["Qwen/Qwen3-0.6B"].parameters == jobs["0.6b/build"]["parameters"]
    assert QWEN_4B.parameters == jobs["4b/build"]["parameters"]
    assert SHAPES["HuggingFaceTB/SmolLM2-135M-Instruct"].parameters == 134_515_008


@pytest.mark.parametrize("config", [{}, {"hidden_size": "big"}, {"num_experts": 8}])
def test_what_is_no_dense_transformer_is_refused(config: dict[str, object]):
    with pytest.raises(OptionError, match="expected a"):
        Shape.of(config)


# Sums.


def test_sums_grow_with_what_they_are_of():
    assert gigabytes(LORA) < gigabytes(FULL) < gigabytes(replace(FULL, reference=True))
    assert gigabytes(replace(FULL, models=3)) > gigabytes(FULL)
    assert gigabytes(replace(FULL, critic=True)) > gigabytes(replace(FULL, reference=True))
    assert gigabytes(replace(LORA, rank=64)) > gigabytes(LORA)
    assert gigabytes(replace(LORA, engine_share=0.3)) == pytest.approx(gigabytes(LORA) + 24)
    short_passes, long_passes = (
        replace(LORA, pass_tokens=tokens, checkpointing=True) for tokens in (4096, 8192)
    )
    assert gigabytes(short_passes) < gigabytes(long_passes)
    assert gigabytes(replace(short_passes, checkpointing=False)) > gigabytes(short_passes)
    recomputed = replace(FULL, checkpointing=True)
    sizes = [gigabytes(recomputed, shape) for shape in list(SHAPES.values())[1:]]
    assert sizes == sorted(sizes)


def test_processes_share_out_the_states_with_fsdp2_alone():
    def states(processes: int, sharded: bool) -> float:
        setup = replace(FULL, processes=processes, sharded=sharded)
        names = ("weights", "gradients", "optimizer")
        parts = memory(LARGE, setup, CARD).parts
        return sum(part.size for part in parts if part.name in names)

    assert states(8, True) == pytest.approx(states(1, False) / 8)
    assert states(8, False) == states(1, False) == 16 * LARGE.parameters


def test_what_fits_is_found_by_the_same_sum():
    assert not memory(LARGE, FULL, CARD).fits
    ways = list(remedies(LARGE, FULL, CARD))
    assert "--weights lora" in ways and any("GPUs with FSDP2" in remedy for remedy in ways)
    assert not list(remedies(SHAPES["Qwen/Qwen3-32B"], FULL, 1e9))


# Against what was measured.


@pytest.mark.parametrize(
    ("job", "shape", "setup"),
    [
        (
            "0.6b/update/paw",
            SHAPES["Qwen/Qwen3-0.6B"],
            Setup(weights="full", reference=True, pass_tokens=16_384),
        ),
        ("4b/update/paw/lora", QWEN_4B, Setup(weights="lora", rank=16, pass_tokens=16_384)),
    ],
)
def test_sums_are_near_peaks_on_a_gpu(job: str, shape: Shape, setup: Setup):
    updates: list[dict[str, float]] = costs()[job]["updates"]  # type: ignore[assignment]
    measured = max(update["peak_memory"] for update in updates)
    computed = memory(shape, setup, 81_559 * 2**20).size
    assert computed == pytest.approx(measured, rel=TOLERANCE)


def test_rates_are_those_of_the_committed_results():
    jobs = costs()
    peak = needs.PEAKS["H100"]
    for rate, job, operations in zip(
        needs.RATES, ("0.6b/update/paw", "4b/update/paw/lora"), (8, 6), strict=True
    ):
        update = jobs[job]["updates"][-1]  # type: ignore[index]
        names = ("prompt_tokens", "response_tokens", "observation_tokens")
        tokens = sum(update[name] for name in names)
        used_operations = operations * rate.parameters * tokens / update["seconds_update"]
        assert used_operations / peak == pytest.approx(rate.share, rel=0.02)


STEP = """
import re, torch
from pathlib import Path
from transformers import AutoModelForCausalLM, Qwen3Config
torch.set_num_threads(1)
config = Qwen3Config(hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
    num_key_value_heads=2, head_dim=64, vocab_size=8000, tie_word_embeddings=True)
torch.nn.Linear(8, 8)(torch.zeros(2, 8)).sum().backward()
def memory(name):  # getrusage would begin with the peak of the process that started this one
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
before = memory("VmRSS")
model = AutoModelForCausalLM.from_config(config)
optimizer = torch.optim.AdamW(model.parameters())
for length in (4, 512):  # the first pass makes the optimizer's states
    ids = torch.randint(8000, (2, length))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_small_models_step_takes_what_the_sum_says():
    """All weights in float32 on a CPU: states, kept activations, and logits with their gradients."""
    pytest.importorskip("transformers")
    process = subprocess.run(
        [sys.executable, "-c", STEP], capture_output=True, text=True, check=True
    )
    measured = float(process.stdout)
    shape = Shape(8, 384, 1024, 6, 2, 64, 8000, True, has_head_norms=True)
    setup = Setup(weights="full", pass_tokens=1024, checkpointing=False, mixed=False)
    # Outside of comap's trainers the loss keeps all logits thrice: they, their copy, their gradient.
    computed = memory(shape, setup, CARD).size + 2 * 4 * 1024 * shape.vocabulary
    assert computed == pytest.approx(measured, rel=TOLERANCE)


# Work and hours.


def request(config: object, method: str) -> Asked:
    return Asked(
        method=method, config=config, env_id="comap/ALFWorld-v0", tasks=100, model="Qwen/Qwen3-8B"
    )


def test_work_follows_the_settings():
    config = PaWTraining(updates=10, groups=4, members=8, max_episode_steps=5)
    (work,) = work_of(request(config, "paw"))
    assert work.rows == 10 * 4 * 8 * 5 and "10 updates of 4 · 8 episodes" in work.basis
    (half,) = work_of(request(replace(config, max_updates=5), "paw"))
    assert half.tokens == work.tokens / 2
    rounds = {part.name: part for part in work_of(request(CoMapTraining(), "comap"))}
    without_distillation = {
        part.name: part for part in work_of(request(CoMapTraining(wmsd=False), "comap"))
    }
    name = "rounds, world model"
    assert rounds[name].tokens == 3 * without_distillation[name].tokens
    assert setup_of(request(CoMapTraining(), "comap")).adapters == 3
    assert not setup_of(
        request(replace(config, optimization=replace(config.optimization, kl=0.0)), "paw")
    ).reference


def test_hours_grow_with_work_and_fall_with_cards():
    def hours(full: bool = True, checkpointing: bool = False, cards: int = 1) -> float:
        fewest, most = training_hours(
            LARGE, 1e9, full=full, checkpointing=checkpointing, passes=1, card="H100", cards=cards
        )
        assert fewest == most, "larger than all that was measured"
        return fewest

    assert hours(full=False) < hours() < hours(checkpointing=True)
    assert hours(cards=4) == hours() / 4


def test_hours_between_two_measured_models_are_a_range():
    shape = SHAPES["Qwen/Qwen2.5-1.5B-Instruct"]
    fewest, most = training_hours(
        shape, 1e9, full=True, checkpointing=False, passes=1, card="H100", cards=1
    )
    shares = [rate.share for rate in needs.RATES]
    assert most / fewest == pytest.approx(max(shares) / min(shares))


def test_what_comap_initializes_is_counted():
    parts = {part.name: part for part in work_of(request(CoMapTraining(), "comap"))}
    part = parts["reflection mode, policy"]
    assert part.rows == 2 * 3 * 256 * 4 and part.replies > 0
    without_reflection = work_of(request(CoMapTraining(reflection_init=False), "comap"))
    assert {part.name: part for part in without_reflection}["reflection mode, policy"].rows == 0


# What samples.


def test_engines_of_several_models_divide_the_share():
    full = setup_of(request(CoMapTraining(weights="full"), "comap"))
    assert full.engine_share == setup_of(request(CoMapTraining(), "comap")).engine_share == 0.3
    small = memory(SHAPES["Qwen/Qwen3-0.6B"], full, CARD)
    assert not small.engine_lack and small.fits
    large = memory(LARGE, full, CARD)
    assert large.engine_lack == pytest.approx(3 * 2 * LARGE.parameters - 24e9, rel=0.05)
    ways = list(remedies(LARGE, full, CARD))
    assert "--weights lora" in ways, "adapters share one engine"
    assert not any("http" in remedy for remedy in ways), "a server takes the weights of one model"


def test_a_share_that_holds_no_weights_does_not_fit():
    huge = SHAPES["Qwen/Qwen3-32B"]
    sharded = replace(
        FULL, engine_share=0.3, processes=64, sharded=True, checkpointing=True, pass_tokens=1024
    )
    assert memory(huge, sharded, CARD).size < needs.USABLE * CARD
    assert not memory(huge, sharded, CARD).fits
    assert memory(huge, replace(sharded, engine_share=0.0), CARD).fits
    assert any("http" in remedy for remedy in remedies(huge, replace(FULL, engine_share=0.3), CARD))


def test_sft_starts_an_engine_only_where_something_is_evaluated():
    config = SFTTraining(evaluation_tasks=0)
    assert setup_of(request(config, "sft")).engine_share == 0
    whole_evaluation = replace(request(replace(config, evaluation_tasks=None), "sft"), sharded=True)
    assert setup_of(whole_evaluation).engine_share == 0.3


def test_what_cannot_be_sharded_is_not_advised_to_be():
    ppo = setup_of(request(PaWTraining(algorithm="ppo"), "paw"))
    assert not any("FSDP2" in remedy for remedy in remedies(LARGE, ppo, CARD))


def test_float32_and_ddp_have_their_price():
    frozen, half = (memory(LARGE, replace(LORA, mixed=mixed), CARD) for mixed in (False, True))
    assert frozen.parts[0].size == 2 * half.parts[0].size == 4 * LARGE.parameters
    alone, eight = (gigabytes(replace(FULL, processes=number)) for number in (1, 8))
    assert eight - alone == pytest.approx(4 * LARGE.parameters / 1e9)
    with pytest.raises(OptionError, match="not float64"):
        setup_of(request(PaWTraining(precision="float64"), "paw"))


# The command line.


def test_a_dry_run_reads_the_configuration_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = {
        "model_type": "qwen3",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 1000,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))  # there are no weights
    out = tmp_path / "out"
    words = ["--model", str(tmp_path), "--out", str(out), "--dry-run"]
    for method in ("paw", "sft", "comap"):
        assert main(["train", method, *words]) == 0
        text = capsys.readouterr().out
        assert f"{Shape.of(config).parameters:,}" in text and "It fits: " in text
    assert not out.exists()
    assert main(["train", "paw", "--model", "Qwen/Qwen3-32B", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "warning: it does not fit" in text and "What would: " in text


def test_mistakes_of_a_dry_run_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "paw", "--preset", "tiny", "--model", "tiny", "--dry-run"]) == 2
    assert "name a model" in capsys.readouterr().err
    assert main(["train", "iwm", "--model", "Qwen/Qwen3-8B", "--dry-run"]) == 2
    assert "--dry-run estimates sft, paw, comap, not iwm" in capsys.readouterr().err
    for words, message in (
        (["--engine", "foo"], "foo"),
        (["--engine-memory", "-1"], "between 0 and 1"),
        (["--train-split", "nope"], "known: 'train'"),
    ):
        assert main(["train", "paw", "--model", "Qwen/Qwen3-8B", "--dry-run", *words]) == 2
        output = capsys.readouterr()
        assert message in output.err and not output.out
    assert main(["train", "paw", "--model", "http://127.0.0.1:1/v1#X", "--dry-run"]) == 2
    assert "cannot be trained here" in capsys.readouterr().err
    assert main(["train", "paw", "--dry-run"]) == 2
    assert "expected a model to train" in capsys.readouterr().err
    with pytest.raises(DataNotFound, match=r"expected the config.json of"):
        shape_of(str(tmp_path))


def test_data_that_are_not_here_are_not_taken_for_no_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    words = ["--model", "Qwen/Qwen3-8B", "--env-option", "source=official", "--dry-run"]
    assert main(["train", "sft", *words]) == 0
    text = capsys.readouterr().out
    assert "unknown: the data are not on this machine" in text and "warning: rows and hours" in text


def test_one_of_several_processes_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "sft", "--model", "Qwen/Qwen3-8B", "--dry-run"]) == 0
    assert not capsys.readouterr().out
