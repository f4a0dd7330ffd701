"""What tests of roles share: a tiny model, roles on it, and what is compared of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from comap.lm import Generate, LanguageModel, Message, Sampling
from comap.lm.base import Completion, Score, Scores
from comap.lm.tiny import build_tiny
from comap.trainers.roles import Roles

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

CORPUS = ["You see a cabinet 1, a shelf 2 and a fridge; go to take open close apple"] * 2
TALK = (Message("user", "You see a cabinet 1."),)
KINDS = pytest.mark.parametrize("kind", ["lora", "full"])
LORA = {"r": 2, "targets": ["q_proj", "down_proj"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(
        tmp_path_factory.mktemp("models") / "tiny", CORPUS, parameters=200_000, max_length=256
    )


def opened(folder: Any, kind: str, **options: Any) -> Roles:
    if kind == "lora" and "saved" not in options:
        options = {"lora": LORA, **options}
    return Roles.open(folder, kind=kind, device="cpu", **options)


def learn(roles: Roles, role: str, steps: int = 2) -> None:
    """Train a role on next tokens, with a rate at which all its weights move."""
    roles.train_only(role)
    own = list(roles.parameters(role).values())
    optimizer = torch.optim.SGD(own, lr=0.5)
    ids = torch.tensor([[3, 7, 30, 40, 50, 7, 9]])
    for _ in range(steps):
        optimizer.zero_grad()
        roles.module(role)(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


def everything(roles: Roles) -> dict[str, dict[str, Any]]:
    """Copies of all weights: of each role and, by the name "base", of what is beneath adapters."""
    found = {role: roles.state(role) for role in roles.names}
    beneath = {
        name: weight.detach().clone()
        for name, weight in roles.base(roles.names[0]).named_parameters()
        if roles.kind == "lora" and ".lora_" not in name
    }
    return found | {"base": beneath}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def flags(roles: Roles) -> list[Any]:
    model = roles.module("wm")
    layers = [m.active_adapters for m in model.modules() if hasattr(m, "active_adapters")]
    return [
        [weight.requires_grad for weight in model.parameters()],
        [module.training for module in model.modules()],
        layers,
        getattr(model, "active_adapter", None),
    ]


def batch_of(names: Sequence[str | None]) -> list[Any]:
    words = ["cabinet", "shelf 2", "fridge and a fridge and a shelf", "apple"]
    talks = [(Message("user", f"You see a {word}."),) for word in words]
    hot = Sampling(12, temperature=1.0, seed=4)
    asked: list[Any] = [Generate(talk, hot, adapter=name) for talk in talks for name in names]
    return asked + [Score(talk, ("go to shelf 2",), adapter=n) for talk in talks for n in names]


def answers(lm: LanguageModel, asked: Sequence[Any]) -> list[Any]:
    """Sampled tokens, and log-probabilities to 4 digits."""
    made = [request for request in asked if isinstance(request, Generate)]
    scored = [request for request in asked if isinstance(request, Score)]
    tokens = [reply.token_ids for reply in lm.generate(made) if isinstance(reply, Completion)]
    totals = [reply.totals for reply in lm.score(scored) if isinstance(reply, Scores)]
    assert len(tokens) == len(made) and len(totals) == len(scored)
    return tokens + [f"{value:.4g}" for total in totals for value in total]


KIT = sys.modules[__name__]
"""This module, for tests: ``load("roles_kit.py:KIT")``."""
