"""PaW's trainer: what an update's gradient is made of, in however many pieces it is computed."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

from comap.errors import OptionError
from kits import paw, processes
from kits.paw import (
    GROUPS,
    changed,
    model_folder,
    run,
    settings,
    some_rows,
    trained,
)

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from comap.trainers.paw import trainer as trainer_module  # noqa: E402
from comap.trainers.paw.rows import Reader  # noqa: E402
from comap.trainers.paw.trainer import (  # noqa: E402
    Critic,
    Functions,
    PaWTrainer,
    recomputes_activations,
)

SCRIPT = Path(paw.__file__)
ALGORITHMS = ("grpo", "rloo", "gigpo", "ppo")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "tiny")


def flat(gradients):
    return torch.cat([gradients[name].double().flatten() for name in sorted(gradients)])


def apart(first, second):
    """How far two gradients are apart, as a part of the first one's length."""
    return float((flat(first) - flat(second)).norm() / flat(first).norm())


def gradient(config, model, out, **options):
    return trained(changed(config, clip=1e9), model, out, **options)[2]


@pytest.mark.parametrize("algorithm", ["gigpo", "ppo"])
def test_the_gradient_does_not_depend_on_micro_batches(algorithm, model, tmp_path):
    """Exact normalization, whatever a micro-batch holds."""
    config = settings(algorithm=algorithm, save_updates=0)
    whole = gradient(changed(config, micro_batch_tokens=100_000), model, tmp_path / "whole")
    for number, change in enumerate(
        ({"micro_batch_tokens": None, "micro_batch_rows": 1}, {"micro_batch_tokens": 70})
    ):
        split = gradient(changed(config, **change), model, tmp_path / str(number))
        assert apart(whole, split) < 1e-5, change


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trees_and_padded_rows_have_the_same_gradient(algorithm, model, tmp_path):
    config = settings(algorithm=algorithm, save_updates=0, micro_batch_tokens=150)
    shared, padded = (
        gradient(changed(config, trees=trees), model, tmp_path / str(trees), dtype=torch.float64)
        for trees in (True, False)
    )
    assert apart(shared, padded) < 1e-9


def test_rows_are_trees_on_a_cpu_and_padded_on_a_gpu():
    assert Reader.of(settings(), None, "cpu").shares
    assert not Reader.of(settings(), None, "cuda:1").shares
    assert Reader.of(settings(trees=True), None, "cuda:1").shares


def test_padded_rows_are_sorted_by_length(model, tmp_path):
    rows = some_rows(0)
    reader = Reader.of(settings(trees=False, micro_batch_tokens=100), None, "cpu")
    token_ids = [row.tokens(False) for row in rows]
    micro_batches = reader.micro_batches(range(len(rows)), rows, token_ids)
    lengths = [len(token_ids[index]) for index in chain(*chain(*micro_batches))]
    assert lengths == sorted(lengths, reverse=True) and len(lengths) == len(rows)
    assert all(len(tree) == 1 for tree in chain(*micro_batches))


class _Waits(TorchDispatchMode):
    """Counts what waits for a GPU: operations by their names, and methods and functions of torch."""

    OPERATIONS = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2")

    def __init__(self, patch):
        super().__init__()
        self.found = []
        self.is_counting = False
        for name in ("cpu", "tolist", "numpy", "item"):
            patch.setattr(torch.Tensor, name, self._noted(getattr(torch.Tensor, name), name))
        for name in ("tensor", "as_tensor"):
            patch.setattr(torch, name, self._copied(getattr(torch, name), name))

    def _note(self, name):
        if self.is_counting:
            self.found.append(name)

    def _noted(self, method, name):
        def noted(tensor, *args, **options):
            self._note(name)
            return method(tensor, *args, **options)

        return noted

    def _copied(self, function, name):
        def copied(values, *args, **options):
            if options.get("device") is not None:  # a copy that is waited for
                self._note(name)
            return function(values, *args, **options)

        return copied

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_truth = name.startswith("index") and any(
            index is not None and index.dtype == torch.bool
            for index in chain(*(arg for arg in args if isinstance(arg, list | tuple)))
        )
        if name in self.OPERATIONS or by_truth:
            self._note(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("bytes_left", "changes", "recomputed"),
    [
        (1e12, {}, False),
        (1e3, {}, True),
        (1e12, {"gradient_checkpointing": True}, True),
        (1e3, {"gradient_checkpointing": False}, False),
    ],
)
def test_activations_are_recomputed_where_they_do_not_fit(
    bytes_left, changes, recomputed, model, monkeypatch
):
    policy = AutoModelForCausalLM.from_pretrained(model)
    on_cpu = settings(gradient_checkpointing=None)
    assert not recomputes_activations(on_cpu, policy, mixed=False)
    monkeypatch.setattr(trainer_module, "room", lambda *_, **__: bytes_left)
    monkeypatch.setattr(type(policy), "device", torch.device("cuda"))
    config = settings(**{"gradient_checkpointing": None, **changes})
    assert recomputes_activations(config, policy, mixed=True) == recomputed


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_nothing_waits_for_a_gpu_between_the_first_and_the_last_micro_batch(
    algorithm, trees, model, tmp_path, monkeypatch
):
    """Also not in the optimizer's steps between mini-batches."""
    config = settings(algorithm=algorithm, trees=trees, mini_batch_rows=10, micro_batch_rows=4)
    trainer, _, _ = trained(changed(config, save_updates=0), model, tmp_path)
    deal, report = PaWTrainer._mini_batches, PaWTrainer._report

    def begin(self, update):
        batches = deal(self, update)
        assert sum(len(batch.micro) for batch in batches) > len(batches) > 1
        waits.is_counting = True
        return batches

    def end(self, update):
        waits.is_counting = False
        report(self, update)

    def step(
        self, accelerator
    ):  # on a CPU AdamW reads the number of its steps; on a GPU it is there too
        waits.is_counting = False
        step_critic(self, accelerator)
        waits.is_counting = True

    step_critic = Critic.step
    monkeypatch.setattr(Critic, "step", step)
    monkeypatch.setattr(PaWTrainer, "_mini_batches", begin)
    monkeypatch.setattr(PaWTrainer, "_report", end)
    waits = _Waits(monkeypatch)
    with waits:
        trainer.training_step(trainer.model, None)
        assert not waits.found
        waits.is_counting = True
        assert torch.zeros(2)[torch.tensor([True, False], device="cpu")].tolist()
    assert waits.found == ["tensor", "index", "tolist"], "it counts"


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_rows_without_an_advantage_are_not_read(algorithm, model, tmp_path, monkeypatch):
    """Nothing else gives them a gradient, and the others' is the same; if all are so, it is zero."""
    changes = {"kl": 0.0, "entropy_bonus": 0.0, "invalid_penalty": 0.0, "micro_batch_rows": 2}
    config = settings(algorithm=algorithm, save_updates=0, paw=False, **changes)

    def of_groups(wins):
        return lambda update: [
            replace(row, episode_return=wins(row) * row.episode_return) for row in some_rows(update)
        ]

    def read(name, wins):
        options = {"rows": of_groups(wins), "dtype": torch.float64}
        trainer, _, grads = trained(changed(config, clip=1e9), model, tmp_path / name, **options)
        update = trainer._prepare(0)
        (batch,) = trainer._mini_batches(update)
        return update, sorted(chain(*chain(*batch.micro))), grads

    update, read_rows, grads = read("some", lambda row: row.group > 0)
    assert read_rows == [index for index, value in enumerate(update.advantages) if value]
    assert {row.group for row in update.rows} - {
        update.rows[index].group for index in read_rows
    } >= {0}
    *_, no_rows, zero = read("none", lambda row: False)
    assert not no_rows and not flat(zero).any()
    monkeypatch.setattr(PaWTrainer, "_counts", lambda *_: True)
    *_, all_rows, same = read("all", lambda row: row.group > 0)
    assert len(all_rows) == len(update.rows) and apart(grads, same) < 1e-12


def test_a_sampled_quantity_has_its_mean_since_the_last_reading():
    from comap.trainers.paw.trainer import sampled

    value, read = 1.0, threading.Event()

    def reading():
        read.set()
        return value

    def wait_for_readings():
        for _ in range(3):
            read.clear()
            assert read.wait(10)

    with sampled(reading, every=0.001) as mean:
        wait_for_readings()
        assert mean() == 1.0
        value = 3.0
        wait_for_readings()
        assert 1.0 < mean() < 3.0  # it has the last reading of before
        wait_for_readings()
        assert mean() == mean() == 3.0


def test_mini_batches_are_steps_of_the_optimizer(model, tmp_path):
    """Each has an even share of the rows, and the last one's gradient is that of its rows alone."""
    config = settings(save_updates=0, learning_rate=1e-12, micro_batch_rows=4)
    config = changed(config, kl=0.0, entropy_bonus=0.0, mini_batch_rows=-(-len(some_rows(0)) // 3))
    trainer, _, last = trained(changed(config, clip=1e9), model, tmp_path / "run")
    update = trainer._prepare(0)
    batches = trainer._mini_batches(update)
    dealt = [sorted(chain(*chain(*batch.micro))) for batch in batches]
    assert sorted(row for part in dealt for row in part) == list(range(len(update.rows)))
    assert {len(part) for part in dealt} <= {batches[0].rows, batches[-1].rows}
    steps = []
    trainer.optimizer.optimizer.register_step_pre_hook(lambda *_: steps.append(None))
    trainer.state.global_step = 0
    trainer.training_step(trainer.model, None)
    assert len(steps) == len(batches) - 1 == 2  # the last is left to transformers' loop
    accumulated = {name: weight.grad for name, weight in trainer.model.named_parameters()}
    assert apart(last, accumulated) < 1e-4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_observations_behind_actions_leave_their_gradient_alone(algorithm, model, tmp_path):
    """With a weight of 0 the observations are read and not learned: the gradient is the plain one."""
    config = settings(algorithm=algorithm, save_updates=0)
    read = gradient(changed(config, wm_coef=0.0), model, tmp_path / "read")
    plain = gradient(changed(config, paw=False), model, tmp_path / "plain")
    assert apart(plain, read) < 1e-6


@pytest.mark.parametrize(
    ("kind", "algorithm"), [*(("cmae", algorithm) for algorithm in ALGORITHMS), ("ce", "grpo")]
)
def test_the_gradient_is_that_of_both_losses(algorithm, kind, model, tmp_path):
    """Against a forward pass of our own of each row by itself."""
    config = settings(algorithm=algorithm, save_updates=0, wm_loss=kind, rho=0.004)
    _, _, combined = trained(changed(config, clip=1e9), model, tmp_path / "both")
    plain = gradient(changed(config, wm_coef=0.0), model, tmp_path / "plain")
    expected = {name: plain[name] + part for name, part in by_hand(config, model, tmp_path).items()}
    assert apart(combined, plain) > 2e-5
    assert apart(expected, combined) < 5e-6


def by_hand(config, model, tmp_path):
    """The gradient of the observations' loss, by PaW, eq. 4 to 11, and no code of the trainer."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows = some_rows(0)
    entropies, losses = [], []
    for row in rows:
        ids = [*row.prompt_ids, *row.response_ids, *row.header_ids, *row.observation_ids]
        logps = torch.log_softmax(policy(input_ids=torch.tensor([ids])).logits[0].float(), -1)
        noted = torch.tensor(row.sampled_logprobs)
        entropies.append(float(-(noted.exp() * noted).mean()))
        p = logps[
            range(len(ids) - len(row.observation_ids) - 1, len(ids) - 1),
            ids[len(ids) - len(row.observation_ids) :],
        ]
        if config.loss.wm_loss == "ce":
            losses.append(-p.mean() if len(p) else None)
        else:
            learned_mask = (p.exp() <= config.loss.rho).detach()
            losses.append(((1 - p.exp()) * learned_mask).sum() / len(p) if len(p) else None)
    pool = sorted(
        (n for n, row_loss in enumerate(losses) if row_loss is not None),
        key=lambda n: -entropies[n],
    )
    selected = set(pool[: -(-len(pool) * 3 // 4)])
    assert config.loss.alpha == 0.75
    total = torch.zeros(())
    for group in range(GROUPS):
        wins = {row.trajectory: row.success for row in rows if row.group == group}
        peers = [losses[n] for n in selected if rows[n].group == group]
        if peers:
            total = (
                total + (1 - sum(wins.values()) / len(wins)) * torch.stack(peers).mean() / GROUPS
            )
    total.backward()
    return {name: weight.grad for name, weight in policy.named_parameters()}


def apart_in_tensors(rows):
    """Rows as TRL has them: each by itself, prompts padded on the left and responses on the right."""
    wide, long = (max(len(getattr(row, n)) for row in rows) for n in ("prompt_ids", "response_ids"))
    prompts, masks, replies = [], [], []
    for row in rows:
        pad = wide - len(row.prompt_ids)
        prompts.append([0] * pad + list(row.prompt_ids))
        masks.append([0] * pad + [1] * len(row.prompt_ids))
        replies.append([*row.response_ids, *[0] * (long - len(row.response_ids))])
    names = ("prompt_ids", "prompt_mask", "completion_ids")
    return {n: torch.tensor(v) for n, v in zip(names, (prompts, masks, replies), strict=True)}


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "gigpo"])
def test_without_paw_the_loss_is_trls(algorithm, model, tmp_path):
    """The policy is not the reference any more, and TRL's own correction of the KL term is off."""
    from trl import GRPOConfig, GRPOTrainer

    config = settings(
        algorithm=algorithm, paw=False, save_updates=0, entropy_bonus=0.0, kl=0.5, mini_batch_rows=8
    )
    trainer, _, _ = trained(config, model, tmp_path / "own", updates=1)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimization = config.optimization
    stock = GRPOTrainer(
        model=policy,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(tmp_path / "stock"),
            loss_type="dapo",
            use_bias_correction_kl=False,
            **{
                "epsilon": optimization.clip_low,
                "epsilon_high": optimization.clip_high,
                "beta": optimization.kl,
            },
            **{"delta": optimization.dual_clip, "temperature": config.agent.temperature},
            **{
                "per_device_train_batch_size": 2,
                "num_generations": 2,
                "use_cpu": True,
                "bf16": False,
            },
            gradient_checkpointing=False,
            report_to="none",
        ),
        train_dataset=trainer.train_dataset,
        processing_class=trainer.processing_class,
    )
    stock.current_gradient_accumulation_steps = 1
    policy.load_state_dict(trainer.model.state_dict())
    update = trainer._prepare(1)
    for line in update.old or ():  # as if the policy had moved since
        line += 0.3 * torch.randn(line.shape, generator=torch.Generator().manual_seed(len(line)))
    for micro in trainer._mini_batches(update)[0].micro:
        inputs = trainer._tensors(update, trainer._mini_batches(update)[0], micro)
        ours = trainer._compute_loss(trainer.model, inputs)
        as_trl = {**inputs, **apart_in_tensors([update.rows[row] for row in chain(*micro)])}
        as_trl["ref_per_token_logps"] = trainer._reference(inputs["forest"])
        theirs = stock._compute_loss(
            policy, {**as_trl, "num_items_in_batch": torch.tensor(float(inputs["tokens"]))}
        )
        assert float(ours) == pytest.approx(float(theirs), rel=1e-5, abs=1e-6)
        for part in (ours, theirs):
            part.backward()
    gradients = [
        {name: weight.grad for name, weight in trained_model.named_parameters()}
        for trained_model in (trainer.model, policy)
    ]
    assert apart(*gradients) < 1e-5


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "gigpo"])
def test_every_algorithm_makes_the_same_clipped_update_of_tokens(algorithm, model, tmp_path):
    """Against the formulas, row by row: ratio, clip, dual clip, KL (k3), entropy, mean over tokens."""
    config = settings(algorithm=algorithm, paw=False, save_updates=0, kl=0.5, mini_batch_rows=8)
    trainer, _, _ = trained(config, model, tmp_path / "run", updates=1)
    update = trainer._prepare(1)
    for line in update.old:
        line += torch.randn(line.shape, generator=torch.Generator().manual_seed(len(line)))
    batch = trainer._mini_batches(update)[0]
    for rows in batch.micro:
        trainer._compute_loss(trainer.model, trainer._tensors(update, batch, rows)).backward()
    grads = {name: weight.grad for name, weight in trainer.model.named_parameters()}

    policy, first = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32) for _ in range(2)
    )
    policy.load_state_dict(trainer.model.state_dict())
    total, tokens, clips = torch.zeros(()), 0, set()
    for index in chain(*chain(*batch.micro)):
        row, gain = update.rows[index], float(update.advantages[index])
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        spots = range(len(row.prompt_ids) - 1, ids.shape[1] - 1)
        lines = [
            torch.log_softmax(network(input_ids=ids).logits[0, spots], -1)
            for network in (policy, first)
        ]
        logprobs = [line[range(len(spots)), list(row.response_ids)] for line in lines]
        for token, (now, before) in enumerate(zip(*logprobs, strict=True)):
            ratio = (now - update.old[index][token]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            loss = torch.maximum(-gain * ratio, -gain * clipped)
            if gain < 0:
                loss = torch.minimum(loss, torch.tensor(-3 * gain))
            clips.add((gain < 0, float(ratio) > 1.2, float(ratio) > 3))
            apart_by = before.detach() - now
            k3 = apart_by.exp() - apart_by - 1
            entropy = -(lines[0][token].exp() * lines[0][token]).sum()
            total = total + loss + 0.5 * k3 - 0.001 * entropy
        tokens += len(spots)
    (total / tokens).backward()
    assert (True, True, True) in clips and len(clips) >= 4
    expected = {name: weight.grad for name, weight in policy.named_parameters()}
    assert apart(expected, grads) < 1e-5


def test_transformers_is_told_where_there_is_no_gpu(model, tmp_path, monkeypatch):
    """Else accelerate takes each of several processes for a single one, and they train apart."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    policy = AutoModelForCausalLM.from_pretrained(model)
    arguments = trainer_module._arguments(settings(), policy, tmp_path, 1, "auto")
    assert arguments.use_cpu and not arguments.bf16


def test_what_is_relied_on_of_trl(model, tmp_path):
    """An upgrade that changes one of these changes the method."""
    trainer, _, _ = trained(settings(save_updates=0), model, tmp_path)
    relied_on = {
        "optim": "adamw_torch_fused",
        **{"adam_beta1": 0.9, "adam_epsilon": 1e-8, "num_iterations": 1},
        **{"disable_dropout": False, "sync_ref_model": False, "cast_lm_head_to_fp32": False},
        **{"average_tokens_across_devices": True, "label_smoothing_factor": 0.0},
        **{"neftune_noise_alpha": None, "use_liger_kernel": False, "steps_per_generation": 1},
    }
    assert {name: getattr(trainer.args, name) for name in relied_on} == relied_on


def passes_of(config, model, out, **options):
    """Return a trainer, and whether each forward pass of its second update had gradients."""
    config = changed(config, save_updates=0, kl=0.0, micro_batch_rows=4)
    trainer, _, _ = trained(config, model, out, updates=1, **options)
    passes = []
    trainer.model.register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    trainer.state.global_step = 1
    trainer.training_step(trainer.model, None)
    return trainer, passes


@pytest.mark.parametrize(("algorithm", "paw"), [("gigpo", True), ("ppo", False)])
def test_each_micro_batch_is_one_forward_pass(algorithm, paw, model, tmp_path):
    config = settings(algorithm=algorithm, paw=paw, micro_batch_rows=4)
    trainer, passes = passes_of(config, model, tmp_path)
    (batch,) = trainer._mini_batches(trainer._prepare(1))
    assert passes.count(True) == len(batch.micro) >= len(some_rows(1)) / 4
    scored = passes[: passes.index(True)].count(False)
    assert scored == 0  # entropies are those of the probabilities noted while sampling


def test_entropies_need_a_pass_where_sampling_noted_nothing(model, tmp_path):
    def unnoted(update):
        return [replace(row, sampled_logprobs=None) for row in some_rows(update)]

    trainer, passes = passes_of(settings(), model, tmp_path, rows=unnoted)
    assert passes[: passes.index(True)].count(False) >= 1
    assert trainer._prepare(1).old is not None


def test_sampled_log_probabilities_save_a_pass(model, tmp_path):
    config = settings(old_logprobs="sampled", micro_batch_rows=4)
    trainer, passes = passes_of(config, model, tmp_path)
    assert not passes.count(False)
    assert [tuple(logprobs.tolist()) for logprobs in trainer._prepare(1).old] == [
        pytest.approx(row.sampled_logprobs) for row in some_rows(1)
    ]


def test_ratios_of_older_weights_start_from_what_was_sampled(model, tmp_path):
    """Also with one mini-batch, at whose beginning the policy has moved since."""
    config = settings(staleness=1, kl=0.0)
    trainer, passes = passes_of(config, model, tmp_path / "noted")
    assert not passes.count(False), "the first policy is not asked anything"
    update = trainer._prepare(1)
    for old_logprobs, row in zip(update.old, update.rows, strict=True):
        assert old_logprobs.tolist() == pytest.approx(row.sampled_logprobs)

    def unnoted(update):
        return [replace(row, sampled_logprobs=None) for row in some_rows(update)]

    with pytest.raises(OptionError, match=r"staleness=1 .* found replies without any"):
        trained(config, model, tmp_path / "unnoted", rows=unnoted)


@pytest.mark.parametrize("mini_batch_rows", [None, 12])
@pytest.mark.parametrize("kl", [0.0, 0.01])
def test_paw_costs_no_pass_of_its_own(mini_batch_rows, kl, model, tmp_path):
    """Rows of a reply that sampling noted: one pass, those of KL and of several steps, with PaW or not."""
    changes = {"mini_batch_rows": mini_batch_rows, "kl": kl, "save_updates": 0}
    passes = {}
    for has_paw in (True, False):
        config = settings(paw=has_paw, **changes)
        trainer, _, _ = trained(config, model, tmp_path / str(has_paw))
        passes[has_paw] = rows_read = {"learned": 0, "scored": 0, "reference": 0}

        def count(policy, args, inputs, rows_read=rows_read):
            (rows, _) = inputs["input_ids"].shape
            rows_read["learned" if torch.is_grad_enabled() else "scored"] += rows

        trainer.reader = Reader.of(changed(config, trees=False), trainer.base, "cpu")
        trainer.model.register_forward_pre_hook(count, with_kwargs=True)
        if trainer.ref_model is not None:
            trainer.ref_model.register_forward_pre_hook(
                lambda policy, args, inputs, rows_read=rows_read: rows_read.update(
                    reference=rows_read["reference"] + len(inputs["input_ids"])
                ),
                with_kwargs=True,
            )
        trainer.training_step(trainer.model, None)
    rows = len(some_rows(1))
    expected = {
        "learned": rows,
        "scored": rows * bool(mini_batch_rows),
        "reference": rows * bool(kl),
    }
    assert passes == {True: expected, False: expected}


def test_the_error_of_sampling_is_that_of_the_first_mini_batch(model, tmp_path):
    """Nothing has moved there: the mean of |sampled - recomputed| over its replies' tokens."""
    config = settings(mini_batch_rows=8, save_updates=0, learning_rate=0.1)
    trainer, (line,), _ = trained(config, model, tmp_path / "run", dtype=torch.float64)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    update = trainer._prepare(0)
    errors = []
    for index in chain(*chain(*trainer._mini_batches(update)[0].micro)):
        row = update.rows[index]
        ids = [*row.prompt_ids, *row.response_ids]
        logps = policy(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        begin = len(row.prompt_ids)
        for place, (token, noted) in enumerate(
            zip(row.response_ids, row.sampled_logprobs, strict=True), begin
        ):
            errors.append(abs(noted - float(logps[place - 1, token].detach())))
    assert line["sampling_error"] == pytest.approx(sum(errors) / len(errors), rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"agent.temperature": 0.7}, {"sampled_logprobs": None}],
    ids=lambda change: next(iter(change)),
)
def test_without_sampled_log_probabilities_of_the_policy_no_error_is_known(change, model, tmp_path):
    """At another temperature they are of another distribution than the one that is trained."""
    config = settings(save_updates=0)
    rows = some_rows
    if "agent.temperature" in change:
        config = changed(config, agent={"temperature": 0.7})
    else:
        rows = lambda update: [replace(row, **change) for row in some_rows(update)]  # noqa: E731
    _, (line,), _ = trained(config, model, tmp_path, rows=rows)
    assert line.get("sampling_error") is None


@pytest.mark.parametrize("algorithm", ["gigpo", "ppo"])
def test_a_stopped_training_ends_as_one_that_was_not(algorithm, model, tmp_path):
    config = settings(algorithm=algorithm, mini_batch_rows=12, micro_batch_rows=5, save_updates=1)
    straight, lines, _ = trained(config, model, tmp_path / "straight", updates=4)
    _, first_lines, _ = trained(config, model, tmp_path / "stopped", updates=4, stop=2)
    resumed_trainer, rest, _ = trained(config, model, tmp_path / "stopped", updates=4)
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, resumed_trainer.model.state_dict()[name]), name
    if algorithm == "ppo":
        for name, weight in straight.critic.state_dict().items():
            assert torch.equal(weight, resumed_trainer.critic.state_dict()[name]), name
    assert [line["update"] for line in first_lines + rest] == [1, 2, 3, 4]
    assert [plain(line) for line in first_lines + rest] == [plain(line) for line in lines]


def plain(line):
    """What does not depend on the clock, nor on which of two nearly equal entropies is higher."""
    left_out = ("seconds", "correlation", "overlap")
    return {n: value for n, value in line.items() if not any(part in n for part in left_out)}


def test_the_critic_is_taught_what_episodes_return(model, tmp_path):
    """A new critic says 0 everywhere: its targets are the returns, its error half their square."""
    config = settings(algorithm="ppo", save_updates=0, learning_rate=1e-12, value_clip=None)
    trainer, (line,), _ = trained(config, model, tmp_path / "run")
    rows = some_rows(0)
    sizes = torch.tensor([float(len(row.response_ids)) for row in rows])
    returns = torch.tensor(
        [row.episode_return - config.invalid_penalty * (not row.valid) for row in rows]
    )
    expected = float((0.5 * returns**2 * sizes).sum() / sizes.sum())
    assert line["value_loss"] == pytest.approx(expected, rel=1e-5)
    # The first step of Adam moves each weight by its rate, against the gradient.
    step = 1e-3 * float(torch.sign((returns * sizes).sum()))
    assert trainer.critic.head.bias.item() == pytest.approx(step, rel=1e-3)


def test_a_round_without_rows_says_what_to_do(model, tmp_path):
    with pytest.raises(OptionError, match="every episode failed"):
        trained(settings(save_updates=0), model, tmp_path, rows=lambda update: [])


# -- functions of a researcher's own ---------------------------------------------------------------


def cross_entropy(logps, mask):
    return -(logps * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def leave_one_out(rows):
    returns = [row.episode_return - 0.1 * (not row.valid) for row in rows]
    groups = [row.group for row in rows]
    advantages = []
    for value, group in zip(returns, groups, strict=True):
        group_returns = [r for r, g in zip(returns, groups, strict=True) if g == group]
        advantages.append(value - (sum(group_returns) - value) / (len(group_returns) - 1))
    return advantages


def lowest(entropies, eligible):
    order = sorted(np.flatnonzero(eligible), key=lambda row: entropies[row])
    selected = set(order[: math.ceil(0.5 * len(order))])
    return [row in selected for row in range(len(entropies))]


def test_functions_take_the_place_of_the_settings(model, tmp_path):
    """Written anew, they are what the settings' own names stand for."""
    changes = {"wm_loss": "ce", "algorithm": "rloo", "selection": "bottom", "loss.alpha": 0.5}
    expected = trained(settings(**changes), model, tmp_path / "named", dtype=torch.float64)
    functions = Functions(wm_loss=cross_entropy, advantage=leave_one_out, select=lowest)
    by_functions = trained(
        settings(), model, tmp_path / "given", dtype=torch.float64, functions=functions
    )
    assert by_functions[2].keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        assert torch.allclose(by_functions[2][name], gradient, rtol=1e-9, atol=1e-12), name
    assert by_functions[1][0]["wm_rows"] == expected[1][0]["wm_rows"] > 0


def test_a_function_of_another_shape_is_refused(model, tmp_path):
    for part in ({"advantage": lambda rows: [0.0]}, {"select": lambda entropies, eligible: []}):
        (name,) = part
        with pytest.raises(OptionError, match=f"expected {name} to return one finite number"):
            trained(settings(), model, tmp_path / name, functions=Functions(**part))


# -- two processes -------------------------------------------------------------------------------

TOGETHER = ("gigpo-12", "rloo-12", "ppo-12")


@pytest.fixture(scope="module")
def together(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    processes.together(SCRIPT, ",".join(TOGETHER), str(model), str(out))
    return out


@processes.needs_gloo
@pytest.mark.parametrize("training_name", TOGETHER)
def test_two_processes_update_as_one_does(training_name, model, together, tmp_path):
    run(training_name, model, tmp_path)
    single_lines, double_lines = (
        json.loads((out / f"{training_name}.json").read_text()) for out in (tmp_path, together)
    )
    for line, other_line in zip(single_lines, double_lines, strict=True):
        assert plain(line) == pytest.approx(plain(other_line), rel=1e-4, abs=1e-5)
    weights, others = (
        torch.load(out / f"{training_name}.pt", weights_only=True) for out in (tmp_path, together)
    )
    assert apart(weights, others) < 1e-6
    for name, weight in weights.items():  # Adam makes much of rounding where a gradient is near 0
        assert (weight - others[name]).abs().max() < 5e-5, name
