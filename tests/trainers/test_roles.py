from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.errors import (
    CoMapError,
    DataCorrupt,
    DataNotFound,
    LanguageModelError,
    OptionError,
)
from comap.lm import Generate, LanguageModel, Message, Sampling
from comap.lm.base import Completion, Score, Scores
from comap.lm.hf import HFLanguageModel
from comap.lm.tiny import build_tiny
from comap.trainers.ema import ema_update
from comap.trainers.roles import ROLES, Roles

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


# -- copies, saved and loaded ----------------------------------------------------------------------


@KINDS
def test_weights_are_copied_exactly(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    learn(roles, "agent")
    state = roles.state("agent")
    roles.copy("agent", "wm_ema")
    assert same(roles.state("wm_ema"), state)
    roles.load("wm", state)
    assert same(roles.state("wm"), state)
    learn(roles, "agent")
    assert same(roles.state("wm_ema"), state) and not same(roles.state("agent"), state)


@KINDS
def test_weights_that_are_not_a_roles_are_refused(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    before, state = roles.state("wm"), roles.state("agent")
    first = next(iter(state))
    wrong = [
        {name: weight for name, weight in state.items() if name != first},
        {**state, "other": state[first]},
        {**state, first: state[first].flatten()},
    ]
    for found, words in zip(wrong, ("1 weights are missing", "1 have no", "shape"), strict=True):
        with pytest.raises(DataCorrupt, match=words):
            roles.load("wm", found)
    assert same(roles.state("wm"), before)


@KINDS
def test_what_is_saved_is_opened_again_exactly(folder: Path, kind: str, tmp_path: Path) -> None:
    roles = opened(folder, kind)
    learn(roles, "agent")
    learn(roles, "wm", steps=3)
    roles.module("wm").train()
    before = flags(roles)
    saved = roles.save(tmp_path / "out")
    assert flags(roles) == before
    roles.module("wm").eval()  # dropout is not the same twice
    again = opened(folder, kind, saved=saved)
    assert all(same(roles.state(role), again.state(role)) for role in roles.names)
    learn(roles, "wm")
    learn(again, "wm")
    assert all(same(roles.state(role), again.state(role)) for role in roles.names)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["out"], "nothing is left beside it"


@KINDS
def test_what_is_saved_is_the_same_bytes_and_names_no_path(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    one = opened(folder, kind).save(tmp_path / "one")
    other = opened(folder, kind).save(tmp_path / "other")
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    for path in files:
        content = (one / path).read_bytes()
        assert content == (other / path).read_bytes(), path
        assert str(folder.parent).encode() not in content, path


def test_a_saved_adapter_is_loaded_by_others(folder: Path, tmp_path: Path) -> None:
    roles = opened(folder, "lora")
    learn(roles, "wm", steps=4)
    saved = roles.save(tmp_path / "out")
    asked = batch_of(["wm"])
    expected = answers(roles.language_model(), asked)
    lm = HFLanguageModel(folder, adapters={"wm": saved / "wm"}, device="cpu")
    assert answers(lm, asked) == expected
    model = HFLanguageModel(folder, device="cpu").model
    loaded = peft.PeftModel.from_pretrained(model, saved / "wm")
    found = {
        name.split("base_model.model.")[1].replace(".default", ""): weight
        for name, weight in loaded.named_parameters()
        if ".lora_" in name
    }
    assert all(torch.equal(found[name], weight) for name, weight in roles.state("wm").items())


def test_a_saved_model_is_loaded_by_others_and_keeps_its_precision(tmp_path: Path) -> None:
    double = build_tiny(tmp_path / "m", CORPUS, parameters=200_000, dtype="float64")
    roles = opened(double, "full")
    learn(roles, "wm", steps=4)
    saved = roles.save(tmp_path / "out", ["wm"])
    assert json.loads((saved / "wm" / "config.json").read_text())["dtype"] == "float64"
    lm = HFLanguageModel(saved / "wm", device="cpu")
    asked = batch_of(["wm"])
    bare = [replace(request, adapter=None) for request in asked]
    assert answers(lm, bare) == answers(roles.language_model(exact=True), asked)


@KINDS
def test_a_teacher_that_was_not_saved_is_its_student(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    roles = opened(folder, kind)
    learn(roles, "wm")
    saved = roles.save(tmp_path / "out", ["agent", "wm"])
    again = opened(folder, kind, saved=saved)
    assert same(again.state("wm_ema"), roles.state("wm"))
    shutil.rmtree(saved / "wm")
    with pytest.raises(DataNotFound, match="found no 'wm'"):
        opened(folder, kind, saved=saved)


def test_adapters_that_were_saved_with_other_options_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    saved = opened(folder, "lora").save(tmp_path / "out")
    again = Roles.open(folder, kind="lora", device="cpu", saved=saved)
    assert again.module("wm").peft_config["wm_ema"].r == 2
    with pytest.raises(OptionError, match="option r=4, found 2"):
        Roles.open(folder, kind="lora", device="cpu", saved=saved, lora={**LORA, "r": 4})
    (saved / "wm" / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(LanguageModelError, match="cannot be loaded"):
        Roles.open(folder, kind="lora", device="cpu", saved=saved)


# -- a process that is killed ----------------------------------------------------------------------


class Killed(BaseException):
    """What no code catches."""


def dies_at(monkeypatch: pytest.MonkeyPatch, rename: int) -> None:
    """Let the process die instead of doing its n-th rename."""
    real, done = Path.replace, []

    def replace(self: Path, target: Any) -> Path:
        done.append(target)
        if len(done) == rename:
            raise Killed
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # the dead clean nothing up


@KINDS
@pytest.mark.parametrize("rename", [1, 2])
def test_a_kill_leaves_the_old_whole(
    folder: Path, kind: str, rename: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = opened(folder, kind)
    out = roles.save(tmp_path / "out")
    (out / "note.txt").write_text("stays")
    old = everything(roles)
    learn(roles, "agent")
    with monkeypatch.context() as patch:
        dies_at(patch, rename)
        with pytest.raises(Killed):
            roles.save(out)
    again = opened(folder, kind, saved=out)
    assert all(same(again.state(role), old[role]) for role in ROLES)
    roles.save(out)
    again = opened(folder, kind, saved=out)
    assert all(same(again.state(role), roles.state(role)) for role in ROLES)
    assert (out / "note.txt").read_text() == "stays"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_kill_while_writing_leaves_the_old_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    roles = opened(folder, "lora")
    out = roles.save(tmp_path / "out")
    old = everything(roles)
    learn(roles, "agent")
    real = safetensors.torch.save_file

    def half(tensors: Any, path: Path, metadata: Any) -> None:
        real(tensors, path, metadata)
        if path.parent.name == "wm":
            raise Killed

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(Killed):
        roles.save(out)
    again = opened(folder, "lora", saved=out)
    assert all(same(again.state(role), old[role]) for role in ROLES)


def test_a_part_is_saved_and_the_rest_stays(folder: Path, tmp_path: Path) -> None:
    roles = opened(folder, "lora")
    out = roles.save(tmp_path / "out")
    old = everything(roles)
    learn(roles, "agent")
    learn(roles, "wm")
    roles.save(out, ["wm"])
    again = opened(folder, "lora", saved=out)
    assert same(again.state("agent"), old["agent"])
    assert same(again.state("wm"), roles.state("wm"))


def test_a_disk_that_does_not_let_it_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OptionError, match="cannot write into"):
        opened(folder, "lora").save(tmp_path / "file" / "out")


# -- answers ---------------------------------------------------------------------------------------


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
