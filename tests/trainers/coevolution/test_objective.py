"""CoMap's divergence, by hand and by chunk, and the moving average."""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import Any

import pytest

from comap.errors import OptionError
from comap.trainers.comap.config import Distillation
from comap.trainers.comap.objective import chunked_divergences, divergence
from comap.trainers.row_trainer import chunked_nll

KINDS = ("forward_kl", "reverse_kl", "jsd")

torch = pytest.importorskip("torch")

STUDENT, TEACHER = [0.2, 0.3, 0.5], [0.6, 0.3, 0.1]
WAYS = [
    *({"divergence": kind} for kind in KINDS),
    {"divergence": "jsd", "jsd_alpha": 0.2, "distill_temperature": 2.0},
    *({"divergence": kind, "topk": 3} for kind in KINDS),
    {"topk": 3, "distill_temperature": 0.5},
]


def logs(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def kl(p, q):
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


def mixed(alpha):
    return [(1 - alpha) * s + alpha * t for s, t in zip(STUDENT, TEACHER, strict=True)]


def noise(*shape, seed=0, dtype=None):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*shape, generator=generator, dtype=dtype or torch.float64)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ({}, kl(TEACHER, STUDENT)),
        ({"divergence": "reverse_kl"}, kl(STUDENT, TEACHER)),
        ({"divergence": "jsd"}, (kl(STUDENT, mixed(0.5)) + kl(TEACHER, mixed(0.5))) / 2),
        (
            {"divergence": "jsd", "jsd_alpha": 0.2},
            0.8 * kl(STUDENT, mixed(0.2)) + 0.2 * kl(TEACHER, mixed(0.2)),
        ),
        # the student's two best are the last two tokens; the first is the bucket, or is left out
        ({"topk": 2}, kl(TEACHER, STUDENT)),
        ({"topk": 1}, kl([0.1, 0.9], [0.5, 0.5])),
        ({"topk": 9}, kl(TEACHER, STUDENT)),
    ],
)
def test_values_worked_by_hand(way, expected):
    divergences = divergence(logs(STUDENT) + 7.0, logs(TEACHER) - 3.0, Distillation(**way))
    assert divergences.shape == (1,)
    assert float(divergences[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_equal_is_zero_and_nothing_is_negative(way):
    student, teacher = noise(200, 11, dtype=torch.float32), noise(200, 11, seed=1)
    teacher = teacher.float()
    equal = divergence(student, student.clone(), Distillation(**way))
    assert float(equal.abs().max()) <= (1e-7 if way.get("divergence") == "jsd" else 0)
    near = student + 1e-4 * teacher
    for divergences in (
        divergence(student, teacher, Distillation(**way)),
        divergence(student, near, Distillation(**way)),
    ):
        assert bool((divergences >= -1e-7).all())
    assert float(divergence(student, teacher, Distillation(**way)).median()) > 1e-2


@pytest.mark.parametrize("way", WAYS)
def test_tokens_that_are_ruled_out_give_numbers(way):
    student, teacher = noise(3, 6, dtype=torch.float32), noise(3, 6, seed=1, dtype=torch.float32)
    student[:, 0] = teacher[:, 0] = -math.inf
    student[1, 1] = teacher[2, 2] = -math.inf
    student.requires_grad_(True)
    divergences = divergence(student, teacher, Distillation(**way))
    divergences.sum().backward()
    assert bool(divergences.isfinite().all()) and bool((divergences >= 0).all())
    assert bool(student.grad.isfinite().all())
    allowed_only = divergence(student[:1, 1:], teacher[:1, 1:], Distillation(**way))
    assert torch.allclose(divergences[:1], allowed_only, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tail_of_nothing_is_no_trouble(dtype):
    student = torch.tensor([[90.0, 0.0, -1.0, 0.5]], dtype=getattr(torch, dtype))
    teacher = torch.tensor([[80.0, 0.0, 3.0, 0.5]], dtype=getattr(torch, dtype))
    student.requires_grad_(True)
    divergences = divergence(student, teacher, Distillation(topk=1))
    divergences.sum().backward()
    assert abs(float(divergences.detach())) < 1e-6
    assert bool(student.grad.isfinite().all())


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_right_and_none_reaches_the_teacher(way):
    student = noise(4, 6).requires_grad_(True)
    teacher = noise(4, 6, seed=1).requires_grad_(True)
    assert torch.autograd.gradcheck(
        lambda s: divergence(s, teacher, Distillation(**way)), (student,)
    )
    divergence(student, teacher, Distillation(**way)).sum().backward()
    assert teacher.grad is None
    assert float(student.grad.abs().max()) > 0


def test_half_precision_is_computed_in_single():
    student, teacher = noise(3, 5).bfloat16(), noise(3, 5, seed=1).bfloat16()
    divergences = divergence(student, teacher)
    assert divergences.dtype == torch.float32
    assert torch.allclose(divergences.double(), divergence(student.double(), teacher.double()))
    assert divergence(student, teacher.double()).dtype == torch.float64


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(OptionError, match="the same vocabulary"):
        divergence(noise(2, 3), noise(2, 4))


class Head(torch.nn.Module):
    """Logits, with a record of how large they were and how many were in memory together."""

    def __init__(self, width, tokens, seed):
        super().__init__()
        self.weight = torch.nn.Parameter(noise(tokens, width, seed=seed))
        self.rows: list[int] = []
        self.alive: list[int] = []
        self._references: list[Any] = []

    def forward(self, hidden):
        logits = hidden @ self.weight.T
        self.rows.append(len(logits))
        self.alive.append(1 + sum(reference() is not None for reference in self._references))
        self._references.append(weakref.ref(logits))
        return logits


@pytest.mark.parametrize("way", WAYS)
def test_chunks_give_value_and_gradients_of_the_whole(way):
    weights = noise(10, seed=5).abs()
    results = []
    for chunk, logit_count in ((None, 0), (10, 0), (4, 0), (4, 8), (4, 10), (1, 3)):
        student, teacher = noise(10, 3).requires_grad_(True), noise(10, 5, seed=1)
        heads = Head(3, 7, seed=2), Head(5, 7, seed=3)
        teacher.requires_grad_(True)
        if chunk is None:
            loss = (
                weights * divergence(heads[0](student), heads[1](teacher), Distillation(**way))
            ).sum()
        else:
            compare = partial(divergence, config=Distillation(**way))
            divergences = chunked_divergences(
                student, teacher, *heads, compare, chunk, kept=logit_count
            )
            loss = (weights * divergences).sum()
        loss.backward()
        assert teacher.grad is None and heads[1].weight.grad is None
        results.append((loss.detach(), student.grad, heads[0].weight.grad))
    for result in results[1:]:
        for whole_value, chunk_value in zip(results[0], result, strict=True):
            assert torch.allclose(whole_value, chunk_value, rtol=1e-12, atol=1e-12)


def test_no_more_than_a_chunk_of_logits_is_in_memory():
    student = noise(103, 3).requires_grad_(True)
    heads = Head(3, 7, seed=2), Head(5, 7, seed=3)
    divergences = chunked_divergences(
        student, noise(103, 5, seed=1), *heads, divergence, 10, kept=25
    )
    loss = divergences.sum()
    for head in heads:
        assert head.rows == [10] * 10 + [3]
    loss.backward()
    for head in heads:
        assert max(head.rows) == 10 and sum(head.rows) == 2 * 103 - 20, "two chunks were kept"
        assert max(head.alive) == 1  # those of the chunk before are gone


def test_nll_in_chunks_is_cross_entropy():
    targets = torch.tensor([0, 6, 3, 3, 2])
    results = []
    for chunk, logit_count in ((None, 0), (5, 0), (2, 0), (1, 0), (2, 4), (2, None)):
        hidden, head = noise(5, 3).requires_grad_(True), Head(3, 7, seed=2)
        if chunk is None:
            nll = torch.nn.functional.cross_entropy(head(hidden), targets, reduction="none")
        else:
            nll = chunked_nll(hidden, head, targets, chunk=chunk, kept=logit_count)
        (nll * torch.arange(1.0, 6.0)).sum().backward()
        assert chunk is None or (max(head.rows) <= chunk and max(head.alive) == 1)
        results.append((nll.detach(), hidden.grad, head.weight.grad))
    for result in results[1:]:
        for whole_value, chunk_value in zip(results[0], result, strict=True):
            assert torch.allclose(whole_value, chunk_value, rtol=1e-12, atol=1e-12)
