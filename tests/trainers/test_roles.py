"""Roles: what is trained and what is not, beginnings, answers, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from comap.envs.conformance.transcripts import load
from comap.errors import CoMapError, LanguageModelError, OptionError
from comap.lm import Generate
from comap.lm.base import Completion, Score, Scores
from comap.lm.tiny import build_tiny
from comap.trainers.ema import ema_update
from comap.trainers.roles import ROLES, Roles

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

kit = load(f"{Path(__file__).with_name('roles_kit.py')}:KIT")
CORPUS, KINDS, TALK = kit.CORPUS, kit.KINDS, kit.TALK
answers, batch_of, everything, flags = kit.answers, kit.batch_of, kit.everything, kit.flags
folder, learn, opened, same = kit.folder, kit.learn, kit.opened, kit.same


# -- what is trained, and what is not --------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("role", ["agent", "wm"])
def test_training_one_role_leaves_all_else_bit_for_bit(folder: Path, kind: str, role: str) -> None:
    roles = opened(folder, kind)
    before = everything(roles)
    learn(roles, role)
    after = everything(roles)
    assert [name for name in before if not same(before[name], after[name])] == [role]
    moved = [
        name for name in before[role] if not torch.equal(before[role][name], after[role][name])
    ]
    assert len(moved) == len(before[role]), "every weight of the role is trained"


@KINDS
def test_the_teacher_begins_as_its_student_and_follows_it(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    assert same(roles.state("wm"), roles.state("wm_ema"))
    assert not same(roles.state("wm"), roles.state("agent")) or kind == "full"
    learn(roles, "wm")
    student, teacher = roles.parameters("wm"), roles.parameters("wm_ema")
    assert list(student) == list(teacher)
    ema_update(list(teacher.values()), list(student.values()), 0.5)
    middle = roles.state("wm_ema")
    assert not same(middle, roles.state("wm"))
    ema_update(list(teacher.values()), list(student.values()), 0.0)
    assert same(roles.state("wm"), roles.state("wm_ema"))
    assert not any(weight.requires_grad for weight in teacher.values())


@KINDS
def test_no_gradient_reaches_the_teacher(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    roles.train_only("wm")
    ids = torch.tensor([[3, 7, 30, 40]])
    student = roles.module("wm")(input_ids=ids).logits
    with roles.using("wm_ema"):
        teacher = roles.module("wm_ema")(input_ids=ids).logits
    assert not teacher.requires_grad, "even without no_grad"
    ((student - teacher) ** 2).sum().add(student.sum()).backward()
    for name, weight in roles.parameters("wm").items():
        assert weight.grad is not None, name
    for role in ("agent", "wm_ema"):
        assert all(weight.grad is None for weight in roles.parameters(role).values())
    with pytest.raises(OptionError, match="wm_ema is a teacher"):
        roles.train_only("wm_ema")


@KINDS
def test_before_training_nothing_can_be_trained(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    for role in roles.names:
        assert not any(weight.requires_grad for weight in roles.module(role).parameters())
        assert not any(module.training for module in roles.module(role).modules())
    learn(roles, "agent")
    learn(roles, "wm")
    for role in roles.names:
        expected = role == "wm"
        assert {w.requires_grad for w in roles.parameters(role).values()} == {expected}


@KINDS
def test_using_puts_everything_back(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    roles.train_only("wm")
    roles.module("wm").train()
    before = flags(roles)
    for role in roles.names:
        with roles.using(role, training=False):
            assert not roles.module(role).training
            with roles.using("agent"):
                roles.train_only("agent")
                roles.module("agent").train()
        assert flags(roles) == before
        with pytest.raises(ValueError, match="stop"), roles.using(role):
            roles.module(role).eval()
            raise ValueError("stop")
        assert flags(roles) == before
    with pytest.raises(OptionError, match="did you mean 'agent'"), roles.using("agnt"):
        pass


def test_using_switches_the_adapter(folder: Path) -> None:
    roles = opened(folder, "lora")
    learn(roles, "wm", steps=4)
    ids = torch.tensor([[3, 7, 30, 40]])
    answers = {}
    for role in roles.names:
        with roles.using(role), torch.no_grad():
            answers[role] = roles.module(role)(input_ids=ids).logits
    assert torch.equal(answers["agent"], answers["wm_ema"]), "neither has learned anything"
    assert not torch.allclose(answers["wm"], answers["wm_ema"])


@KINDS
def test_training_goes_on_after_answers(folder: Path, kind: str) -> None:
    alone, between = opened(folder, kind), opened(folder, kind)
    for roles in (alone, between):
        lm = roles.language_model()
        learn(roles, "wm", steps=1)
        if roles is between:
            answers(lm, batch_of(["agent", "wm", "wm_ema"]))
        learn(roles, "wm", steps=1)
    assert same(alone.state("wm"), between.state("wm"))


# -- beginnings ------------------------------------------------------------------------------------


def test_new_adapters_depend_on_seed_and_role_alone(folder: Path) -> None:
    torch.manual_seed(1)
    one = opened(folder, "lora", seed=3)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    other = opened(folder, "lora", seed=3, roles=("wm", "wm_ema", "agent"))
    assert torch.equal(state, torch.random.get_rng_state()), "others' random numbers stay"
    assert all(same(one.state(role), other.state(role)) for role in ROLES)
    again = opened(folder, "lora", seed=4)
    assert not same(one.state("wm"), again.state("wm"))
    for name, weight in one.state("agent").items():
        inside = weight.shape[1] ** -0.5
        assert bool((weight == 0).all()) is ("lora_B" in name)
        assert float(weight.abs().max()) <= inside
        assert "lora_B" in name or float(weight.abs().max()) > inside / 2


def test_adapters_are_as_asked_for(folder: Path) -> None:
    roles = opened(
        folder, "lora", lora={"r": 3, "alpha": 12, "dropout": 0.25, "targets": ["v_proj"]}
    )
    config = roles.module("wm_ema").peft_config["wm_ema"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (3, 12, 0.25)
    names = {name.split(".")[-3] for name in roles.parameters("wm")}
    assert names == {"v_proj"}
    everywhere = Roles.open(folder, kind="lora", device="cpu")
    names = {name.split(".")[-3] for name in everywhere.parameters("wm")}
    assert len(names) == 7
    assert everywhere.module("wm").peft_config["wm"].r == 8


def test_adapters_have_single_precision_on_a_model_of_half(folder: Path) -> None:
    roles = opened(folder, "lora", dtype="bfloat16")
    assert roles.base("wm").dtype == torch.bfloat16
    for role in roles.names:
        assert {w.dtype for w in roles.parameters(role).values()} == {torch.float32}


@KINDS
def test_precision_is_chosen_for_training(kind: str, tmp_path: Path) -> None:
    double = build_tiny(tmp_path / "m", CORPUS, parameters=200_000, dtype="float64")
    assert opened(double, kind).base("wm").dtype == torch.float32
    assert opened(double, kind, dtype="float64").base("wm").dtype == torch.float64


# -- answers ---------------------------------------------------------------------------------------


@KINDS
def test_answers_are_those_of_the_role_that_is_named(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    lm = roles.language_model()
    learn(roles, "wm", steps=6)
    found = {name: answers(lm, batch_of([name])) for name in (*roles.names, None)}
    assert found["wm"] != found["agent"]
    assert found["wm_ema"] == found["agent"] == found[None]
    assert lm.config()["adapters"] == sorted(roles.names)
    assert lm.name == "tiny"
    unknown = lm.generate([Generate(TALK, adapter="wn")])[0]
    assert isinstance(unknown, LanguageModelError)


@KINDS
def test_exact_answers_do_not_depend_on_the_batch(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    learn(roles, "wm", steps=6)
    before, state = everything(roles), torch.random.get_rng_state()
    asked = [request for request in batch_of(list(ROLES)) if isinstance(request, Generate)]
    scored = [request for request in batch_of(list(ROLES)) if isinstance(request, Score)]
    together = roles.language_model(exact=True)
    alone = roles.language_model(exact=True, batch_rows=1)
    one, other = together.generate(asked), [alone.generate([request])[0] for request in asked]
    for a, b in zip(one, other, strict=True):
        assert isinstance(a, Completion) and isinstance(b, Completion)
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, rel=1e-12)
    for a, b in zip(together.score(scored), alone.score(scored[::-1])[::-1], strict=True):
        assert isinstance(a, Scores) and isinstance(b, Scores)
        assert a.totals == pytest.approx(b.totals, rel=1e-12)
    assert all(same(before[name], after) for name, after in everything(roles).items())
    assert torch.equal(state, torch.random.get_rng_state())


@KINDS
def test_exact_answers_are_those_of_the_model_in_double_precision(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    roles = opened(folder, kind)
    learn(roles, "wm", steps=6)
    exact = roles.language_model(exact=True)
    asked = [request for request in batch_of(["wm"]) if isinstance(request, Score)]
    expected = exact.score(asked)
    double = opened(folder, kind, dtype="float64", saved=roles.save(tmp_path / "out"))
    for one, other in zip(double.language_model().score(asked), expected, strict=True):
        assert isinstance(one, Scores) and isinstance(other, Scores)
        assert one.totals == pytest.approx(other.totals, rel=1e-12)
    learn(roles, "wm", steps=2)
    assert exact.score(asked) == expected, "the copies were taken then"


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "both"}, "kind must be"),
        ({"roles": ()}, "at least one"),
        ({"roles": ("wm", "wm")}, "different names"),
        ({"roles": ("agent", "wm_ema")}, "teacher of 'wm', which is not among"),
        ({"roles": ("wm", "wm_ema", "wm_ema_ema")}, "which is a teacher itself"),
        ({"roles": ("../wm",)}, "letters, digits"),
        ({"roles": ("lora_A",)}, "no 'lora_'"),
        ({"lora": {"rank": 4}}, "no LoRA option 'rank'"),
        ({"lora": {"r": 0}}, "r must be"),
        ({"lora": {"alpha": 0}}, "alpha must be"),
        ({"lora": {"dropout": 1}}, "dropout must be"),
        ({"lora": {"targets": "q_proj"}}, "targets must be"),
        ({"lora": {"targets": ["nowhere"]}}, "does not fit this model"),
        ({"kind": "full", "lora": {}}, "there are none"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"dtype": "int8", "kind": "full"}, "dtype must be"),
    ],
)
def test_bad_arguments_are_refused(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoMapError, match=words):
        Roles.open(folder, **{"kind": "lora", "device": "cpu", **options})


def test_models_that_do_not_fit_together_are_refused(folder: Path, tmp_path: Path) -> None:
    other = build_tiny(tmp_path / "other", ["another word"] * 2, parameters=200_000)
    with pytest.raises(OptionError, match="to have one vocabulary, found that of wm"):
        opened({"agent": folder, "wm": other}, "full")
    shutil.copytree(folder, tmp_path / "speaks")
    (tmp_path / "speaks" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    (tmp_path / "speaks" / "checksums.json").unlink()
    with pytest.raises(OptionError, match="one chat template"):
        opened({"agent": folder, "wm": tmp_path / "speaks"}, "full")
    with pytest.raises(OptionError, match="there is no role 'wn'"):
        opened({"agent": folder, "wn": folder}, "full")
    with pytest.raises(OptionError, match="none for 'wm'"):
        opened({"agent": folder}, "full")
    with pytest.raises(OptionError, match="share one model"):
        opened({"agent": folder}, "lora")


def test_each_role_may_begin_with_its_own_model(folder: Path, tmp_path: Path) -> None:
    other = build_tiny(tmp_path / "o", CORPUS, parameters=200_000, max_length=256, seed=9)
    roles = opened({"agent": folder, "wm": other}, "full")
    assert not same(roles.state("agent"), roles.state("wm"))
    assert same(roles.state("wm"), roles.state("wm_ema"))
    assert same(roles.state("agent"), opened(folder, "full").state("wm"))


def test_other_models_of_the_teachers_are_refused(folder: Path, tmp_path: Path) -> None:
    other = build_tiny(tmp_path / "o", CORPUS, parameters=400_000, max_length=256)
    with pytest.raises(OptionError, match="wm's shape"):
        opened({"agent": folder, "wm": folder, "wm_ema": other}, "full")
    roles = opened({"agent": other, "wm": folder}, "full")
    with pytest.raises(OptionError, match="agent cannot be copied into wm"):
        roles.copy("agent", "wm")
