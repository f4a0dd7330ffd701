"""PaW's trainer: what an update's gradient is made of, in however many pieces it is computed."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("trl")

from comap.envs.conformance.transcripts import load
from comap.trainers.paw.batches import micro_batches
from comap.trainers.paw.scored import scored_alone

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("paw_kit.py")
processes = load(f"{SCRIPT.with_name('process_kit.py')}:KIT")
ALGORITHMS = ("grpo", "rloo", "gigpo", "ppo")


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("comap_tests_paw_kit", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kit = loaded()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = kit.model_folder(tmp_path_factory.mktemp("models") / "tiny")
    return folder


def flat(gradients: dict[str, Any]) -> Any:
    return torch.cat([gradients[name].double().flatten() for name in sorted(gradients)])


def apart(one: dict[str, Any], two: dict[str, Any]) -> float:
    """How far two gradients are apart, as a part of the first one's length."""
    return float((flat(one) - flat(two)).norm() / flat(one).norm())


def gradient(config: Any, model: Path, out: Path, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = kit.trained(replace(config, clip=1e9), model, out, **options)[2]
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_gradient_does_not_depend_on_micro_batches(
    algorithm: str, model: Path, tmp_path: Path
) -> None:
    """METHODS.md 2.3, test (c): exact normalisation, whatever a micro-batch holds."""
    config = kit.settings(algorithm=algorithm, save_updates=0)
    whole = gradient(replace(config, micro_batch_tokens=100_000), model, tmp_path / "whole")
    for number, change in enumerate(
        ({"micro_batch_tokens": None, "micro_batch_rows": 1}, {"micro_batch_tokens": 70})
    ):
        split = gradient(replace(config, **change), model, tmp_path / str(number))
        assert apart(whole, split) < 1e-5, change


def test_mini_batches_are_steps_of_the_optimizer(model: Path, tmp_path: Path) -> None:
    """Each has an even share of the rows, and the last one's gradient is that of its rows alone."""
    config = kit.settings(save_updates=0, learning_rate=1e-12, micro_batch_rows=4)
    config = replace(
        config, kl=0.0, entropy_bonus=0.0, mini_batch_rows=-(-len(kit.some_rows(0)) // 3)
    )
    trainer, _, last = kit.trained(replace(config, clip=1e9), model, tmp_path / "run")
    update = trainer._prepared(0)
    batches = trainer._mini_batches(update)
    dealt = [sorted(row for micro in batch.micro for row in micro) for batch in batches]
    assert sorted(row for part in dealt for row in part) == list(range(len(update.rows)))
    assert {len(part) for part in dealt} <= {batches[0].rows, batches[-1].rows}
    steps: list[Any] = []
    trainer.optimizer.optimizer.register_step_pre_hook(lambda *_: steps.append(None))
    trainer.state.global_step = 0
    trainer.training_step(trainer.model, None)
    assert len(steps) == len(batches) - 1 == 2  # the last is left to transformers' loop
    found = {name: weight.grad for name, weight in trainer.model.named_parameters()}
    assert apart(last, found) < 1e-4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_observations_behind_actions_leave_their_gradient_alone(
    algorithm: str, model: Path, tmp_path: Path
) -> None:
    """With a weight of 0 the observations are read and not learned: the gradient is the plain one."""
    config = kit.settings(algorithm=algorithm, save_updates=0)
    read = gradient(replace(config, wm_coef=0.0), model, tmp_path / "read")
    plain = gradient(kit.off(config), model, tmp_path / "plain")
    assert apart(plain, read) < 1e-6


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["cmae", "ce"])
def test_the_gradient_is_that_of_both_losses(
    algorithm: str, kind: str, model: Path, tmp_path: Path
) -> None:
    """METHODS.md 2.5, against a forward pass of our own of each row by itself."""
    config = kit.settings(algorithm=algorithm, save_updates=0, wm_loss=kind, rho=0.004)
    _, _, both = kit.trained(replace(config, clip=1e9), model, tmp_path / "both")
    plain = gradient(replace(config, wm_coef=0.0), model, tmp_path / "plain")
    expected = {name: plain[name] + part for name, part in by_hand(config, model, tmp_path).items()}
    assert apart(both, plain) > 2e-5
    assert apart(expected, both) < 5e-6


def by_hand(config: Any, model: Path, tmp_path: Path) -> dict[str, Any]:
    """The gradient of the observations' loss, by METHODS.md 2.2 to 2.5 and no code of the trainer."""
    policy = kit.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows = kit.some_rows(0)
    entropies, losses = [], []
    for row in rows:
        ids = [*row.prompt_ids, *row.response_ids, *row.header_ids, *row.observation_ids]
        logps = torch.log_softmax(policy(input_ids=torch.tensor([ids])).logits[0].float(), -1)
        first = len(row.prompt_ids)
        said = logps[range(first - 1, first - 1 + len(row.response_ids)), list(row.response_ids)]
        entropies.append(float(-(said.exp() * said).mean()))
        p = logps[
            range(len(ids) - len(row.observation_ids) - 1, len(ids) - 1),
            ids[len(ids) - len(row.observation_ids) :],
        ]
        if config.wm_loss == "ce":
            losses.append(-p.mean() if len(p) else None)
        else:
            kept = (p.exp() <= config.rho).detach()
            losses.append(((1 - p.exp()) * kept).sum() / len(p) if len(p) else None)
    pool = sorted(
        (n for n, one in enumerate(losses) if one is not None), key=lambda n: -entropies[n]
    )
    chosen = set(pool[: -(-len(pool) * 3 // 4)])
    assert config.alpha == 0.75
    total = torch.zeros(())
    for group in range(kit.GROUPS):
        won = {row.trajectory: row.success for row in rows if row.group == group}
        own = [losses[n] for n in chosen if rows[n].group == group]
        if own:
            total = (
                total + (1 - sum(won.values()) / len(won)) * torch.stack(own).mean() / kit.GROUPS
            )
    total.backward()
    return {name: weight.grad for name, weight in policy.named_parameters()}


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_without_paw_the_loss_is_trls_to_the_last_bit(
    algorithm: str, model: Path, tmp_path: Path
) -> None:
    from trl import GRPOTrainer, RLOOTrainer

    config = kit.settings(algorithm=algorithm, paw=False, save_updates=0, entropy_bonus=0.0)
    config = replace(config, kl=0.0 if algorithm == "rloo" else 0.01)
    trainer, _, _ = kit.trained(config, model, tmp_path / "own", updates=1)
    stock_kind = RLOOTrainer if algorithm == "rloo" else GRPOTrainer
    policy = kit.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    stock = stock_kind(
        model=policy,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=trainer.args,
        train_dataset=trainer.train_dataset,
        processing_class=trainer.processing_class,
    )
    stock.current_gradient_accumulation_steps = 1
    policy.load_state_dict(trainer.model.state_dict())
    update = trainer._prepared(1)
    (batch,) = trainer._mini_batches(update)
    for rows in batch.micro:
        inputs = trainer._tensors(update, batch, rows)
        trainer._micro = inputs
        ours = trainer._compute_loss(trainer.model, inputs)
        with torch.no_grad():
            whole = stock._compute_loss(policy, inputs)  # which scores prompts, too, on a CPU
        with scored_alone():  # as on a GPU
            theirs = stock._compute_loss(policy, inputs)
        assert float(whole) == pytest.approx(float(theirs), rel=1e-5, abs=1e-6)
        if algorithm == "rloo":
            theirs = theirs * (len(rows) / batch.rows)
        assert torch.equal(ours, theirs)
        for part in (ours, theirs):
            part.backward()
    for one, two in zip(trainer.model.parameters(), policy.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("paw", [True, False])
def test_each_micro_batch_is_one_forward_pass(
    algorithm: str, paw: bool, model: Path, tmp_path: Path
) -> None:
    config = kit.settings(algorithm=algorithm, paw=paw, save_updates=0, kl=0.0, micro_batch_rows=4)
    trainer, _, _ = kit.trained(config, model, tmp_path / "some", updates=1)
    (batch,) = trainer._mini_batches(trainer._prepared(1))
    passes: list[bool] = []
    trainer.model.register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    trainer.state.global_step = 1
    trainer.training_step(trainer.model, None)
    assert passes.count(True) == len(batch.micro) >= len(kit.some_rows(1)) / 4
    sizes = [(len(row.prompt_ids), len(row.response_ids)) for row in kit.some_rows(1)]
    once = len(micro_batches(range(len(sizes)), sizes, 4, None))
    assert passes.count(False) == (once if paw or algorithm == "rloo" else 0)


def test_sampled_log_probabilities_save_a_pass(model: Path, tmp_path: Path) -> None:
    config = kit.settings(save_updates=0, kl=0.0, micro_batch_rows=4, old_logprobs="sampled")
    trainer, _, _ = kit.trained(config, model, tmp_path / "some", updates=1)
    passes: list[bool] = []
    trainer.model.register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    trainer.state.global_step = 1
    trainer.training_step(trainer.model, None)
    assert not passes.count(False)
    rows = kit.some_rows(1)
    update = trainer._prepared(1)
    assert [tuple(one.tolist()) for one in update.old] == [
        pytest.approx(row.sampled_logprobs) for row in rows
    ]


@pytest.mark.parametrize("algorithm", ["gigpo", "ppo", "rloo"])
def test_a_stopped_training_ends_as_one_that_was_not(
    algorithm: str, model: Path, tmp_path: Path
) -> None:
    config = kit.settings(
        algorithm=algorithm, mini_batch_rows=12, micro_batch_rows=5, save_updates=1
    )
    straight, lines, _ = kit.trained(config, model, tmp_path / "straight", updates=4)
    _, begun, _ = kit.trained(config, model, tmp_path / "stopped", updates=4, stop=2)
    ended, rest, _ = kit.trained(config, model, tmp_path / "stopped", updates=4)
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, ended.model.state_dict()[name]), name
    if algorithm == "ppo":
        for name, weight in straight.critic.state_dict().items():
            assert torch.equal(weight, ended.critic.state_dict()[name]), name
    assert [line["update"] for line in begun + rest] == [1, 2, 3, 4]
    assert [plain(line) for line in begun + rest] == [plain(line) for line in lines]


def plain(line: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock, nor on which of two nearly equal entropies is higher."""
    left_out = ("seconds", "correlation", "overlap")
    return {n: value for n, value in line.items() if not any(part in n for part in left_out)}


def test_the_critic_learns_what_episodes_return(model: Path, tmp_path: Path) -> None:
    config = kit.settings(algorithm="ppo", save_updates=0, learning_rate=1e-12, value_clip=None)
    _, told, _ = kit.trained(
        config, model, tmp_path / "run", updates=50, rows=lambda update: kit.some_rows(0)
    )
    assert told[-1]["value_loss"] < told[0]["value_loss"] / 2


def test_a_policy_learns_to_predict_what_it_observes(model: Path, tmp_path: Path) -> None:
    """With rewards that are all alike, only the observations teach anything."""
    rows = [replace(row, episode_return=0.0, reward=0.0, valid=True) for row in kit.some_rows(0)]
    config = kit.settings(save_updates=0, learning_rate=3e-3, kl=0.0, entropy_bonus=0.0, alpha=1.0)
    _, told, _ = kit.trained(config, model, tmp_path / "on", updates=30, rows=lambda _: rows)
    assert told[0]["wm_lambda"] == 1.0 and told[0]["policy_loss"] == pytest.approx(0.0)
    assert told[-1]["wm_probability"] > 4 * told[0]["wm_probability"]
    off = replace(config, paw=False)
    _, _, found = kit.trained(off, model, tmp_path / "off", updates=1, rows=lambda _: rows)
    assert float(flat(found).norm()) == 0.0


def test_a_round_without_rows_says_what_to_do(model: Path, tmp_path: Path) -> None:
    from comap.errors import OptionError

    with pytest.raises(OptionError, match="every episode failed"):
        kit.trained(kit.settings(save_updates=0), model, tmp_path, rows=lambda update: [])


# -- two processes -------------------------------------------------------------------------------

TOGETHER = ("grpo", "gigpo-12", "rloo-12", "ppo-12")


@pytest.fixture(scope="module")
def together(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two")
    processes.together(SCRIPT, ",".join(TOGETHER), str(model), str(out))
    return out


@processes.needs_gloo
@pytest.mark.parametrize("what", TOGETHER)
def test_two_processes_update_as_one_does(
    what: str, model: Path, together: Path, tmp_path: Path
) -> None:
    kit.run(what, model, tmp_path)
    one, two = (json.loads((out / f"{what}.json").read_text()) for out in (tmp_path, together))
    for line, other in zip(one, two, strict=True):
        assert plain(line) == pytest.approx(plain(other), rel=1e-4, abs=1e-5)
    weights, others = (
        torch.load(out / f"{what}.pt", weights_only=True) for out in (tmp_path, together)
    )
    assert apart(weights, others) < 1e-6
    for name, weight in weights.items():  # Adam makes much of rounding where a gradient is near 0
        assert (weight - others[name]).abs().max() < 5e-5, name
