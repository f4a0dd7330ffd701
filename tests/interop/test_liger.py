"""liger-kernel's fused head and cross-entropy, in Triton's interpreter on a CPU, beside the plain losses.

`make interop DOORS=liger` makes the environment. The interpreter runs the kernel that a GPU would run, one
program after the other; all around it is what a training on a GPU calls. Only the question whether there is
a GPU is left out, and how many logits are kept: here few or none.
"""

# installs: comap[train,gpu] torch==2.13.0

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip(
    "liger_kernel", reason="liger-kernel is not installed: make interop installs it"
)

import torch

from comap.errors import OptionError
from comap.trainers import row_trainer, trees
from comap.trainers.row_trainer import chunked_nll, fused_nll, liger_nll
from kits import learning, paw

torch.set_num_threads(1)

VOCABULARY = 49_152
CLOSE = 1e-5
"""The largest difference of losses in nats, and of gradients beside their largest number."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each call of the kernel had, which is called wherever a GPU's training calls it."""
    counts: list[int] = []

    def without_gpu(head: Any, hidden: Any) -> Any:
        assert type(head) is torch.nn.Linear
        kernel = liger_nll(head)
        assert kernel is not None

        def counted(states: Any, targets: Any) -> Any:
            counts.append(len(targets))
            return kernel(states, targets)

        return counted

    monkeypatch.setattr(row_trainer, "fused_nll", without_gpu)
    monkeypatch.setattr(trees, "fused_nll", without_gpu)
    return counts


def keep_no_logits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_trainer, "kept_logits", lambda device: 0)
    patch.setattr(trees, "kept_logits", lambda device: 0)


def gap(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two tensors beside the largest number."""
    assert ours.dtype == theirs.dtype and theirs.abs().max() > 0
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("trained", ["all", "hidden", "head"])
def test_losses_and_gradients_of_a_real_vocabulary(calls: list[int], trained: str) -> None:
    """Each token has a weight of its own in the loss, below zero or zero; 16 keep their logits."""
    torch.manual_seed(0)
    hidden = torch.randn(22, 64)
    head = torch.nn.Linear(64, VOCABULARY, bias=trained == "all")
    head.requires_grad_(trained != "hidden")
    hidden.requires_grad_(trained != "head")
    targets = torch.randint(VOCABULARY, (22,))
    targets[-1] = VOCABULARY - 1
    weights = torch.randn(22) * (torch.arange(22) % 5 > 0)

    results = []
    for logit_count in (22, 16):
        losses = chunked_nll(hidden, head, targets, chunk=8, kept=logit_count)
        (losses * weights).sum().backward()
        gradients = [part.grad for part in (hidden, *head.parameters()) if part.requires_grad]
        results.append((losses.detach(), gradients))
        for part in (hidden, head.weight, head.bias):
            if part is not None:
                part.grad = None

    (plain_losses, plain), (losses, gradients) = results
    assert calls == [6]
    assert float((losses - plain_losses).abs().max()) < CLOSE
    assert len(gradients) == {"all": 3, "hidden": 1, "head": 1}[trained]
    assert max(map(gap, gradients, plain)) < CLOSE


def test_one_token_and_none(calls: list[int]) -> None:
    head = torch.nn.Linear(8, 40)
    hidden = torch.randn(1, 8, requires_grad=True)
    target = torch.tensor([3])
    plain = chunked_nll(hidden, head, target, kept=1)
    fused = chunked_nll(hidden, head, target, kept=0)
    assert float((fused - plain).detach().abs()) < CLOSE
    assert calls == [1]
    empty_losses = chunked_nll(hidden[:0], head, target[:0], kept=0)
    assert empty_losses.shape == (0,)
    empty_losses.sum().backward()
    assert calls == [1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learning.model_folder(tmp_path_factory.mktemp("a") / "tiny")


@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize("training_name", ["warm_up", "distill", "policy"])
def test_trainings_of_comap_have_the_same_loss_and_gradient(
    model: Path, tmp_path: Path, calls: list[int], training_name: str, kind: str
) -> None:
    """SFT (eq. 4 and 5), the world model's evolution with its teacher (eq. 6), the policy's (eq. 8)."""
    results = []
    for is_fused in (False, True):
        roles = learning.opened(model, kind, dtype="float32")
        trainer = learning.make(training_name, roles, tmp_path / str(is_fused), tokens=80)
        with pytest.MonkeyPatch.context() as patch:
            if is_fused:
                keep_no_logits(patch)
            results.append(learning.gradient_of(trainer))
        assert bool(calls) == is_fused
        trainer.close()

    (plain_loss, plain), (loss, gradient) = results
    assert loss == pytest.approx(plain_loss, rel=CLOSE)
    assert gap(gradient, plain) < CLOSE
    assert len(calls) > 1, "an update has several micro-batches"


@pytest.mark.parametrize("reading", ["trees", "rows"])
def test_an_update_of_paw_has_the_same_gradient(
    tmp_path: Path, calls: list[int], reading: str
) -> None:
    """Policy, observations and KL: the loss is no mean of the tokens' losses."""
    settings = paw.settings(
        algorithm="grpo", paw=True, kl=0.05, trees=reading == "trees", learning_rate=1e-2
    )
    folder = paw.model_folder(tmp_path / "model")
    results = []
    for is_fused in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if is_fused:
                keep_no_logits(patch)
            _, log, gradients = paw.trained(settings, folder, tmp_path / str(is_fused), updates=2)
        assert bool(calls) == is_fused
        results.append((log, gradients))

    # The second update begins with the weights that the first one's gradient gave.
    (plain_log, plain), (log, gradients) = results
    for line, plain_line in zip(log, plain_log, strict=True):
        for name in ("policy_loss", "wm_loss", "kl", "wm_nll"):
            assert line[name] == pytest.approx(plain_line[name], rel=1e-3, abs=CLOSE)
    assert gradients.keys() == plain.keys()
    largest = max(float(gradient.abs().max()) for gradient in plain.values())
    gaps = [float((gradients[name] - plain[name]).abs().max()) for name in plain]
    assert max(gaps) < 1e-3 * largest


def test_in_mixed_precision_only_rounding_differs(calls: list[int]) -> None:
    """Logits are bfloat16 in both ways, losses single precision; so is the sum of the head's gradient."""
    torch.manual_seed(0)
    hidden = torch.randn(40, 64, requires_grad=True)
    head = torch.nn.Linear(64, 2000, bias=False)
    targets = torch.randint(2000, (40,))
    weights = torch.randn(40)

    results = []
    for logit_count in (40, 0):
        with torch.autocast("cpu", torch.bfloat16):
            losses = chunked_nll(hidden, head, targets, kept=logit_count)
            (losses * weights).sum().backward()
        assert losses.dtype == torch.float32
        results.append((losses.detach(), hidden.grad, head.weight.grad))
        hidden.grad = head.weight.grad = None
    assert calls == [40]
    (plain_losses, *plain), (losses, *gradients) = results
    assert float((losses - plain_losses).abs().max()) < CLOSE
    assert max(map(gap, gradients, plain)) < 0.02


def test_where_it_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    head = torch.nn.Linear(4, 9)
    assert fused_nll(head, torch.zeros(1, 4)) is None, "there is no GPU"
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)
    assert fused_nll(head, on_gpu) is not None
    assert fused_nll(torch.nn.Sequential(head), on_gpu) is None, (
        "an adapter of the head is a module"
    )
    on_gpu.dtype = torch.float64
    assert fused_nll(head, on_gpu) is None

    monkeypatch.setattr(metadata, "version", lambda name: "0.8.1")
    with pytest.raises(OptionError, match="which computes wrong gradients"):
        liger_nll(head)
