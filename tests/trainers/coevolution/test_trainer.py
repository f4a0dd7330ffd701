"""The losses after warm-up, worked by hand from plain logits; the teacher; what must not change."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from comap.errors import OptionError
from comap.trainers.comap.config import Distillation
from comap.trainers.comap.objective import (
    ema_update,
    policy_objective,
    world_model_objective,
)
from comap.trainers.comap.trainer import (
    CoMapTrainer,
    Targets,
    Teacher,
    TokenPositions,
    branch_mask,
    branched,
)
from comap.trainers.config import Optimization
from comap.trainers.roles import Roles
from comap.trainers.samples import Example, MicroBatch, plan_updates
from kits.learning import gradient_of, make, opened, settings, world_samples

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
torch.set_num_threads(1)


KINDS = pytest.mark.parametrize("kind", ["lora", "full"])
ETA = 0.5
WM = partial(world_model_objective, eta=ETA)
POLICY = partial(policy_objective, alpha=2.0, beta=0.25, anchor=0.5)


def stir(roles, *names, seed=0):
    """Move roles' weights, so that student, teacher and base model differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in names:
            for weight in roles.parameters(name).values():
                weight += 0.05 * torch.randn(weight.shape, generator=generator).to(weight.dtype)


def trainer_of(roles, out, rows, role="wm", **overrides):
    defaults = settings(roles, out, world_samples(), role=role, accumulate=1)
    defaults |= {
        "epochs": [rows],
        "plan": plan_updates(
            [[len(row) for row in rows]], Optimization(batch_rows=len(rows), accumulate=1)
        ),
    }
    objective = POLICY if role == "agent" else WM
    return CoMapTrainer(**{"objective": objective, **defaults, **overrides})


def teacher_of(continuations=None, **config):
    return Teacher(role="wm_ema", config=Distillation(**config), continuations=continuations)


def logs_of(roles, role, tokens):
    """Log-probabilities of every next token, of a plain forward pass."""
    with torch.no_grad(), roles.using(role, training=False):
        return roles.module(role)(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)


def nll(roles, role, row):
    logs, start = logs_of(roles, role, row.prompt + row.answer), len(row.prompt) - 1
    losses = [
        -float(logs[start + place, token])
        for place, (token, flag) in enumerate(zip(row.answer, row.scored, strict=True))
        if flag
    ]
    return sum(losses) / len(losses)


def kl(roles, row, tokens):
    """Mean over positions of KL(teacher || student), each with its own prompt."""
    student = logs_of(roles, "wm", row.prompt + tokens)[len(row.prompt) - 1 : -1]
    teacher = logs_of(roles, "wm_ema", row.teacher + tokens)[len(row.teacher) - 1 : -1]
    return float((teacher.exp() * (teacher - student)).sum(-1).mean())


def bce(p, y):
    return -(y * math.log(p) + (1 - y) * math.log(1 - p))


def loss_of(trainer):
    """The loss of the first update, which is one micro-batch; its gradient is added to the weights'."""
    assert len(trainer.micro_batches(trainer.plan[0])) == 1
    return float(trainer.training_step(trainer.model, {}))


def distilled(**fields):
    """Three rows with prompts of different lengths."""
    rows = [
        Example((9, 11, 8), (20, 21, 5), (True, True, True), 1.0),
        Example((9, 12, 30, 8), (22, 5), (False, True), 0.5),
        Example((9, 8), (23, 24, 25, 5), (False,) * 4, 2.0),
    ]
    teachers = ((9, 40, 11, 8), (), (9, 42, 43, 44, 8))
    return [
        replace(row, teacher=teacher, **fields) for row, teacher in zip(rows, teachers, strict=True)
    ]


@KINDS
def test_likelihood_and_distillation_are_those_worked_by_hand(model, tmp_path, kind):
    roles, rows = opened(model, kind), distilled()
    stir(roles, "wm", "wm_ema")
    sampled_texts = [(31, 32, 5), (), (33,)]
    for continuations in (None, sampled_texts):
        trainer = trainer_of(
            roles,
            tmp_path,
            rows,
            teacher=teacher_of(
                continuations=None if continuations is None else lambda epoch: sampled_texts,
                chunk=2,
            ),
        )
        on = [row.answer for row in rows] if continuations is None else sampled_texts
        expected = nll(roles, "wm", rows[0]) + ETA * kl(roles, rows[0], on[0])
        expected += 0.5 * nll(roles, "wm", rows[1])
        expected += 2.0 * ETA * kl(roles, rows[2], on[2])
        assert loss_of(trainer) == pytest.approx(expected / 3, abs=1e-10)
        trainer.close()


def test_the_label_of_a_head_is_worked_by_hand(model, tmp_path):
    roles = opened(model, "lora")
    stir(roles, "agent")
    decision = (0, 20, 21)  # it is there and does not matter where there is a head
    rows = [
        Example((9, 11, 8), (20, 5), (True, True), 1.0, 1.0, decision),
        Example((9, 12, 30, 8), (21, 5), (False, False), 3.0, 0.0),
        Example((9, 8), (22, 5), (True, True), 1.5, expert=True),
    ]
    head = torch.nn.Linear(roles.base("agent").config.hidden_size, 1).double()
    chances = []
    for row in rows[:2]:
        ids = torch.tensor([row.prompt])
        with torch.no_grad(), roles.using("agent", training=False):
            hidden = roles.module("agent")(input_ids=ids, output_hidden_states=True).hidden_states
        chances.append(float(head(hidden[-1][0, -1]).detach().sigmoid()))
    trainer = trainer_of(roles, tmp_path, rows, "agent", head=head)
    # NLL + alpha (NLL_ref + beta BCE), each row by its weight
    expected = 0.5 * 1.5 * nll(roles, "agent", rows[2]) + 2.0 * nll(roles, "agent", rows[0])
    expected += 2.0 * 0.25 * (bce(chances[0], 1.0) + 3.0 * bce(chances[1], 0.0))
    assert loss_of(trainer) == pytest.approx(expected / 3, abs=1e-10)
    noted = {name: (float(metric.sum), metric.terms) for name, metric in trainer._noted.items()}
    assert noted["p"] == pytest.approx((sum(chances), 2))
    assert noted["label_accuracy"] == ((chances[0] > 0.5) + (chances[1] <= 0.5), 2)
    assert noted["distillation"] == (0, 0) and noted["nll"][1] == 2
    trainer.close()
    untrained = torch.nn.Linear(roles.base("agent").config.hidden_size, 1)
    with torch.no_grad():
        untrained.weight.zero_(), untrained.bias.zero_()
    trainer = trainer_of(roles, tmp_path, rows[1:2], "agent", head=untrained)
    assert loss_of(trainer) == pytest.approx(1.5 * math.log(2), abs=1e-6), "p is one half"
    trainer.close()


def test_the_label_of_two_words_is_worked_by_hand(model, tmp_path):
    roles = opened(model, "lora")
    stir(roles, "agent")
    rows = [
        Example((9, 11, 8), (30, 20, 5), (False, True, True), 1.0, 1.0, (1, 20, 21)),
        Example((9, 8), (21, 5), (False, False), 8.0, 0.0, (0, 20, 21)),
        Example((9, 8), (21,), (False,), 8.0, 1.0, None),  # cut before its decision
    ]
    expected = 2.0 * nll(roles, "agent", rows[0])
    for row, y, beta, place in ((rows[0], 1.0, 0.5, 1), (rows[1], 0.0, 4.0, 0)):
        logs = logs_of(roles, "agent", row.prompt + row.answer)[len(row.prompt) - 1 + place]
        revise, keep = float(logs[20].exp()), float(logs[21].exp())
        expected += beta * bce(revise / (revise + keep), y)
    trainer = trainer_of(roles, tmp_path, rows, "agent")
    assert loss_of(trainer) == pytest.approx(expected / 3, abs=1e-10)
    trainer.close()


@KINDS
def test_distillation_is_zero_exactly_where_teacher_and_student_are_one(model, tmp_path, kind):
    roles = opened(model, kind)
    stir(roles, "wm")
    roles.copy("wm", "wm_ema")
    row = Example((9, 11, 8), (20, 21, 5), (False,) * 3, teacher=(9, 11, 8))

    def loss_and_gradient(row, **teacher_options):
        teacher = teacher_of(**teacher_options)
        trainer = trainer_of(roles, tmp_path, [row], teacher=teacher)
        loss = loss_of(trainer)
        grad = sum(float(w.grad.abs().sum()) for w in roles.parameters("wm").values())
        trainer.close()
        return loss, grad

    for kind_of in ("forward_kl", "reverse_kl", "jsd"):
        loss, grad = loss_and_gradient(row, divergence=kind_of)
        assert abs(loss) < 1e-12 and grad < 1e-6
        assert loss_and_gradient(replace(row, teacher=(9, 40, 41, 8)), divergence=kind_of)[0] > 1e-6
    stir(roles, "wm_ema", seed=1)
    assert loss_and_gradient(row)[0] > 1e-6


@KINDS
def test_no_gradient_reaches_the_teacher_or_any_other_role(model, tmp_path, kind):
    roles = opened(model, kind)
    stir(roles, "wm_ema")
    before = {role: roles.state(role) for role in roles.names}
    trainer = trainer_of(roles, tmp_path, distilled(), teacher=teacher_of(mu=1.0))
    loss_of(trainer)
    for role in ("agent", "wm_ema"):
        assert all(weight.grad is None for weight in roles.parameters(role).values()), role
    assert all(weight.grad is not None for weight in roles.parameters("wm").values())
    trainer.fit()
    for role in ("agent", "wm_ema"):
        now = roles.state(role)
        assert all(torch.equal(weight, now[name]) for name, weight in before[role].items()), role


@KINDS
def test_the_teacher_is_exactly_the_moving_average_of_the_student(model, tmp_path, kind):
    roles = opened(model, kind)
    expected = list(roles.state("wm_ema").values())
    weight_sums = []

    class Watched(CoMapTrainer):
        def after_update(self):
            ema_update(expected, list(self.role_weights.values()), 0.9)
            weight_sums.append(float(next(iter(self.role_weights.values())).detach().sum()))
            super().after_update()

    trainer_settings = settings(roles, tmp_path, world_samples())
    Watched(objective=WM, teacher=teacher_of(mu=0.9), **trainer_settings).fit()
    assert len(set(weight_sums)) == 4
    for expected_weight, weight in zip(expected, roles.state("wm_ema").values(), strict=True):
        assert torch.equal(expected_weight, weight)


def test_the_teacher_has_no_dropout_and_the_student_has(model, tmp_path):
    roles = opened(model, "lora", dropout=0.5)
    stir(roles, "wm", "wm_ema")
    trainer = trainer_of(roles, tmp_path, distilled(), teacher=teacher_of())
    trainer.model.train()
    places = TokenPositions(has_head=False)
    for row in distilled():
        places.add(row, row.answer)
    targets = Targets.of(places, "cpu")
    first_pass, second_pass = (trainer._teacher_output(places, targets).hidden for _ in range(2))
    assert torch.equal(first_pass, second_pass) and not first_pass.requires_grad
    assert trainer.model.training, "the student's dropout is on again"
    losses = {loss_of(trainer) for _ in range(3)}
    assert len(losses) == 3
    trainer.close()


def test_a_text_is_asked_for_once_an_epoch_even_where_a_process_has_no_row(model, tmp_path):
    roles = opened(model, "lora")
    epochs = []

    def continuations(epoch):
        epochs.append(epoch)
        return [(20, 5)] * 5

    trainer_settings = settings(roles, tmp_path, world_samples(), epochs=3)
    teacher = teacher_of(continuations=continuations)
    trainer = CoMapTrainer(objective=WM, teacher=teacher, **trainer_settings)
    empty = {"batch": MicroBatch(0, ())}
    trainer.compute_loss(trainer.model, empty, num_items_in_batch=1).backward()
    assert epochs == [0]
    trainer.fit()
    assert epochs == [0, 1, 2]


def test_rows_that_need_more_than_was_given_are_refused(model, tmp_path):
    roles = opened(model, "lora")
    row = Example((9, 8), (5,), (True,))
    for extra_fields, message in (
        (
            {"teacher": (9, 8)},
            "expected a teacher for rows that are distilled",
        ),
        (
            {"label": 1.0},
            "expected a refinement head, or replies with a decision",
        ),
    ):
        with pytest.raises(OptionError, match=message):
            trainer_of(roles, tmp_path, [replace(row, **extra_fields)])


def test_the_head_learns_with_its_own_rate(model, tmp_path):
    roles = opened(model, "lora")
    trainer = make("policy", roles, tmp_path, rate=0.0)
    before = roles.state("agent")
    log = trainer.fit()
    assert all(torch.equal(w, roles.state("agent")[name]) for name, w in before.items())
    assert trainer.head.weight.any()
    assert log[0]["p"] == 0.5
    names = {name for line in log for name in line}
    assert {"loss", "nll", "bce", "label_accuracy", "p", "num_tokens"} <= names
    assert not hasattr(roles.base("agent"), "refinement_head")


@KINDS
@pytest.mark.parametrize("training_name", ["evolve", "policy"])
def test_an_update_has_the_gradient_of_its_rows_by_themselves(
    model, tmp_path, kind, training_name, double
):
    """Cut in two and three micro-batches, or row by row, as the losses are added up."""
    results = []
    for tokens in (1, 60, 10_000):
        roles = opened(model, kind)
        stir(roles, "wm", "wm_ema", "agent")
        trainer = make(training_name, roles, tmp_path, rows=5, accumulate=1, tokens=tokens)
        if trainer.head is not None:
            trainer.head.double()
        batches = trainer.micro_batches(trainer.plan[0])
        results.append((len(batches), *gradient_of(trainer)))
        trainer.close()
    (passes, loss, gradient), *others = results
    assert passes == 5 and sorted(result[0] for result in others)[0] == 1
    for _, other_loss, other_gradient in others:
        assert other_loss == pytest.approx(loss, rel=1e-9)
        difference = (gradient - other_gradient).abs().max()
        assert float(difference) < 1e-9 * float(gradient.abs().max())


def test_a_shared_prompt_changes_no_loss_and_no_gradient(model):
    """A reply and a continuation as branches of one prompt are what they are apart."""
    rows = [
        Example((1, 2, 3), (4, 5), (True, True), teacher=(3, 1)),
        Example((7, 8), (9,), (True,), teacher=(3,)),
        Example((6, 6, 6, 6), (4, 5, 7), (True, True, True)),
    ]
    tails = [(11, 12, 13, 14), (21,), ()]
    roles = Roles.open(model, kind="full", roles=("wm",), dtype="float64", device="cpu")
    reader = roles.base("wm")
    roles.train_only("wm")
    results = []
    for shared, dense in ((True, False), (True, True), (False, False)):
        places = TokenPositions(False, shared)
        for row, tail in zip(rows, tails, strict=True):
            places.add(row, tail)
        assert len(places.sequences) == (3 if shared else 5)
        inputs = branched(places.sequences, places.branches, reader).tensors
        if dense:  # as on a GPU
            width = inputs["input_ids"].shape[1]
            inputs["attention_mask"] = branch_mask(places.branches, width, "cpu")
        reader.zero_grad()
        hidden = reader.base_model(**inputs, use_cache=False).last_hidden_state
        predicted = [*places.answers, *places.distilled]
        read_states = hidden[
            [place.sequence_index for place in predicted],
            [place.position for place in predicted],
        ]
        (read_states**3).sum().backward()
        grads = torch.cat([weight.grad.reshape(-1) for weight in reader.parameters()])
        results.append((read_states.detach(), grads.clone()))
    for others in results[1:]:
        for expected_part, part in zip(results[0], others, strict=True):
            difference = float((expected_part - part).abs().max())
            assert difference < 1e-5 * float(expected_part.abs().max()), (
                "norms are single precision"
            )
