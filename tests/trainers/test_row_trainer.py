"""Warm-up: what its loss is, that it can be gone on with, and that it leaves the model as it was."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from comap.errors import DataCorrupt, OptionError
from comap.lm import Generate, Sampling
from comap.trainers.row_trainer import CausalMask, ModelInputs
from comap.trainers.run_folder import last_checkpoint
from comap.trainers.samples import Update
from kits.learning import gradient_of, make, opened, question_about, result, settings, world_samples

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

torch.set_num_threads(1)


KINDS = pytest.mark.parametrize("kind", ["lora", "full"])


def nll_sum(roles, role, rows):
    """The sum over scored tokens of a plain forward pass of each row by itself."""
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad(), roles.using(role, training=False):
        for row in rows:
            ids = torch.tensor([row.prompt + row.answer])
            logs = roles.module(role)(input_ids=ids).logits[0].log_softmax(-1)
            for place, (token, flag) in enumerate(zip(row.answer, row.scored, strict=True)):
                if flag:
                    total -= logs[len(row.prompt) - 1 + place, token]
    return total


def same(first, second):
    return list(first) == list(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


@KINDS
def test_the_loss_is_the_mean_over_the_scored_tokens_of_an_update(model, tmp_path, kind):
    roles = opened(model, kind)
    trainer = make("warm_up", roles, tmp_path, rows=2, accumulate=2, tokens=80)
    (update, _, *_) = trainer.plan
    batches = trainer.micro_batches(update)
    rows = [row for batch in batches for row in trainer.rows_of(batch)]
    scored = sum(sum(row.scored) for row in rows)
    assert 1 < len(batches) < 4 and len(rows) == 4 and trainer.divisor(update) == scored
    total = trainer.training_step(trainer.model, {})
    assert float(total) == pytest.approx(float(nll_sum(roles, "wm", rows) / scored), abs=1e-12)
    trainer.close()


def test_each_line_of_the_log_tells_the_update_s_own_loss(model, tmp_path):
    roles = opened(model, "full")
    logged_lines = []
    trainer = make(
        "warm_up", roles, tmp_path, rate=0.0, epochs=1, tokens=80, tell=logged_lines.append
    )
    expected = []
    for update in trainer.plan:
        rows = [trainer.epochs[0][row] for row in update.rows]
        scored = sum(sum(row.scored) for row in rows)
        expected.append(float(nll_sum(roles, "wm", rows) / scored))
    sizes = [[trainer.tokens_of_row(0, row) for row in update.rows] for update in trainer.plan]
    cut = [trainer.micro_batches(update) for update in trainer.plan]
    log = trainer.fit()
    assert [line["loss"] for line in log] == pytest.approx(expected, rel=1e-6)
    assert [line["num_tokens"] for line in log] == [sum(sizes[0]), sum(map(sum, sizes))]
    for line, batches, lengths in zip(log, cut, sizes, strict=True):
        by_row = dict(zip(trainer.plan[cut.index(batches)].rows, lengths, strict=True))
        read = sum(len(batch.rows) * max(by_row[row] for row in batch.rows) for batch in batches)
        assert line.get("padding", 0.0) == pytest.approx(1 - sum(lengths) / read)
    assert [line["steps"] for line in logged_lines] == [2, 2]
    assert [{**line, "steps": 2} for line in log] == logged_lines


def test_it_is_trl_s_own_loss(model, tmp_path):
    """TRL's fused head on the same labels, masks included, gives the same loss."""
    roles = opened(model, "full", dtype="float32")
    trainer = make("warm_up", roles, tmp_path, rows=4)
    (batch,) = trainer.micro_batches(trainer.plan[0])
    rows = trainer.rows_of(batch)
    width = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width)
    labels = torch.full_like(ids, -100)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row.prompt + row.answer)
        mask[number, : len(row)] = 1
        labels[number, len(row.prompt) : len(row)] = torch.tensor(row.answer)
    trl_output = trainer.base(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    ours = trainer.compute_loss(
        trainer.model, {"batch": batch}, num_items_in_batch=trl_output.label_mask.sum()
    )
    assert float(ours.detach()) == pytest.approx(float(trl_output.loss.detach()), rel=1e-6)
    trainer.close()


@KINDS
def test_an_update_does_not_depend_on_how_it_is_split(model, tmp_path, kind):
    states = []
    for rows, accumulate, tokens in ((1, 4, 1), (4, 1, 1000), (2, 2, 80)):
        roles = opened(model, kind)
        out = tmp_path / f"{rows}"
        make("warm_up", roles, out, rows=rows, accumulate=accumulate, tokens=tokens).fit()
        states.append(roles.state("wm"))
    for state in states[1:]:
        for name, weight in states[0].items():
            assert (weight - state[name]).abs().max() < 1e-9, name


@KINDS
def test_the_gradient_is_that_of_each_row_by_itself(model, tmp_path, kind, double):
    """As of plain passes, one row at a time, in double precision."""
    gradients = []
    for tokens in (80, 10_000):
        roles = opened(model, kind)
        trainer = make("warm_up", roles, tmp_path, rows=5, accumulate=1, tokens=tokens)
        rows = [trainer.epochs[0][row] for row in trainer.plan[0].rows]
        gradients.append(gradient_of(trainer))
        trainer.model.zero_grad()

        expected = torch.zeros((), dtype=torch.float64)
        for row in rows:
            logits = trainer.model(input_ids=torch.tensor([row.prompt + row.answer])).logits[0]
            lines = logits[len(row.prompt) - 1 : -1]
            losses = torch.nn.functional.cross_entropy(
                lines, torch.tensor(row.answer), reduction="none"
            )
            expected = expected + losses[torch.tensor(row.scored)].sum()
        expected = expected / sum(sum(row.scored) for row in rows)
        expected.backward()
        weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
        gradient = torch.cat([weight.grad.reshape(-1) for weight in weights])
        trainer.close()

        loss, own_gradient = gradients[-1]
        assert loss == pytest.approx(float(expected.detach()), rel=1e-9)
        difference = (own_gradient - gradient).abs().max()
        assert float(difference) < 1e-9 * float(gradient.abs().max())


class Waits(TorchDispatchMode):
    """Counts where a GPU's results would be waited for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func._overloadpacket
        self.count += packet in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("training_name", ["warm_up", "evolve", "policy"])
def test_nothing_is_waited_for_in_an_update(model, tmp_path, training_name):
    roles = opened(model, "lora", dropout=0.1)
    trainer = make(training_name, roles, tmp_path, tokens=80)
    trainer.create_optimizer_and_scheduler(4)
    trainer.micro_batches(trainer.plan[0])  # the student's texts are written before
    with Waits() as waits:
        trainer.training_step(trainer.model, {})
    assert waits.count == 0
    trainer.close()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("window", [None, 3])
def test_padded_rows_are_what_they_are_by_themselves(attention, window):
    """Without a mask of padding: with windows it even gives no numbers in transformers' own attention."""
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = transformers.MistralConfig(
        **sizes,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=window,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    reader = transformers.MistralForCausalLM(config).double()
    sequences = [(1, 2, 3, 4, 5, 6, 7), (8, 9), (3, 4, 5, 6, 2)]
    inputs = ModelInputs.padded(sequences, reader)
    assert inputs.tokens == 14
    is_plain = attention == "sdpa" and window is None
    assert isinstance(inputs.tensors.get("attention_mask"), CausalMask) == is_plain

    results = []
    together = reader.base_model(**inputs.tensors, use_cache=False).last_hidden_state
    alone = [reader.base_model(torch.tensor([tokens]), use_cache=False) for tokens in sequences]
    for states in (
        [row[: len(tokens)] for row, tokens in zip(together, sequences, strict=True)],
        [output.last_hidden_state[0] for output in alone],
    ):
        hidden = torch.cat(states)
        reader.zero_grad()
        (hidden**3).sum().backward()
        weights = [weight.grad.reshape(-1) for weight in reader.base_model.parameters()]
        results.append((hidden.detach(), torch.cat(weights)))
    for padded_part, single_part in zip(*results, strict=True):
        difference = float((padded_part - single_part).abs().max())
        assert difference < 1e-6 * float(padded_part.abs().max()), "norms are single precision"


def picture(roles):
    """All that is not a weight's value: attributes, hooks, flags and configs."""
    parts = []
    for role in roles.names:
        for name, module in roles.module(role).named_modules():
            attributes = {
                key: list(value) if isinstance(value, dict) else id(value)
                for key, value in vars(module).items()
                if key not in ("training",)
            }
            parts.append((name, module.training, attributes))
        parts += [weight.requires_grad for weight in roles.module(role).parameters()]
        parts += [weight.grad for weight in roles.module(role).parameters()]
        base = roles.base(role)
        parts += [copy.deepcopy(vars(base.config)), copy.deepcopy(vars(base.generation_config))]
    return parts


@pytest.mark.parametrize(("kind", "checkpointing"), [("lora", True), ("full", False)])
def test_the_models_are_as_before_and_can_be_trained_and_asked_again(
    model, tmp_path, kind, checkpointing
):
    roles = opened(model, kind)
    ask = [Generate(question_about("mug"), Sampling(4), adapter="agent")]
    before = picture(roles)
    for number in (1, 2):
        out = tmp_path / str(number)
        trainer = make("warm_up", roles, out, checkpointing=checkpointing)
        trainer.fit()
        trainer.close()
        assert picture(roles) == before
    make("policy", roles, tmp_path / "3", checkpointing=checkpointing).fit()
    assert picture(roles) == before
    fresh = opened(model, kind)
    fresh.load("agent", roles.state("agent"))
    assert fresh.language_model().generate(ask) == roles.language_model().generate(ask)


def test_a_failure_leaves_the_models_as_before(model, tmp_path):
    roles = opened(model, "lora")
    before = picture(roles)

    def fail(line):
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        make("warm_up", roles, tmp_path, tell=fail).fit()
    assert picture(roles) == before
    trainer_settings = settings(roles, tmp_path, world_samples())
    from comap.trainers.row_trainer import WarmUpTrainer

    roles.base("wm").config.final_logit_softcapping = 30.0
    with pytest.raises(OptionError, match=r"scales them \(final_logit_softcapping\)"):
        WarmUpTrainer(**trainer_settings)
    del roles.base("wm").config.final_logit_softcapping
    assert picture(roles) == before


class Interrupted(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("training_name", "kind"), [("warm_up", "full"), ("evolve", "lora"), ("policy", "lora")]
)
def test_an_interrupted_training_ends_as_an_undisturbed_one(model, tmp_path, training_name, kind):
    def run(out, stop):
        def stop_at(line):
            if line["step"] == stop:
                raise Interrupted

        roles = opened(model, kind, dropout=0.4)
        trainer = make(training_name, roles, out, save=1, tell=stop_at)
        return result(roles, trainer, trainer.fit())

    whole = run(tmp_path / "whole", None)
    assert len(whole["log"]) == (6 if training_name == "policy" else 4)
    for stop in (2, 4):
        with pytest.raises(Interrupted):
            run(tmp_path / "parts", stop)
    half = tmp_path / "parts" / "checkpoints" / "checkpoint-9"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    parts = run(tmp_path / "parts", None)
    assert not half.exists()
    assert parts["log"] == whole["log"]
    for part, weights in whole["weights"].items():
        assert same(weights, parts["weights"][part]), part
    finished = run(tmp_path / "parts", None)
    assert finished["log"] == whole["log"], "one that had ended is as it was"
    assert same(finished["weights"]["wm"], whole["weights"]["wm"])


def test_only_complete_checkpoints_count(tmp_path):
    for name in ("checkpoint-2", "checkpoint-10", "checkpoint-30", "checkpoint-x"):
        (tmp_path / name).mkdir()
    for name in ("checkpoint-2", "checkpoint-10"):
        (tmp_path / name / "complete").touch()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-2"]


@pytest.mark.parametrize("damage", ["bytes", "others", "none"])
def test_a_damaged_checkpoint_is_told_and_not_taken(model, tmp_path, damage):
    roles = opened(model, "lora")
    make("warm_up", roles, tmp_path, save=2).fit()
    last = last_checkpoint(tmp_path / "checkpoints")
    file = Path(last) / "weights.safetensors"
    if damage == "bytes":
        file.write_bytes(file.read_bytes()[:200])
    elif damage == "none":
        file.unlink()
    else:
        from safetensors.torch import save_file

        save_file({"own/x": torch.ones(1)}, file)
    state = roles.state("wm")
    with pytest.raises(DataCorrupt, match=r"expected the weights of wm .* remove that folder"):
        make("warm_up", roles, tmp_path, save=2).fit()
    assert same(state, roles.state("wm"))


def test_who_cannot_be_trained(model, tmp_path):
    from comap.trainers.row_trainer import WarmUpTrainer

    roles = opened(model, "lora")
    trainer_settings = settings(roles, tmp_path, world_samples())
    for changed, message in (
        ({"role": "wm_ema"}, "wm_ema is a teacher"),
        ({"role": "nobody"}, "no role 'nobody'"),
        ({"plan": [Update(0, ((),))]}, "expected rows to train wm on, found none"),
    ):
        with pytest.raises(OptionError, match=message):
            WarmUpTrainer(**{**trainer_settings, **changed})
    trainer_settings["args"]._n_gpu = 2
    with pytest.raises(OptionError, match=r"one GPU for each process.*torchrun"):
        WarmUpTrainer(**trainer_settings)


def test_nothing_is_sent_printed_or_warned(model, tmp_path, monkeypatch, capfd, recwarn):
    from trl.trainer import base_trainer

    telemetry = []
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda *a, **k: telemetry.append(a))
    monkeypatch.delenv("CI", raising=False)
    roles = opened(model, "full")
    make("warm_up", roles, tmp_path, checkpointing=True).fit()
    assert not telemetry
    assert capfd.readouterr().out == ""
    assert not [str(w.message) for w in recwarn if issubclass(w.category, FutureWarning)]
