"""Roles: what is trained and what is not, beginnings, answers, and what is refused."""

from __future__ import annotations

import shutil

import pytest

from comap.errors import CoMapError, LanguageModelError, OptionError
from comap.lm import Generate, Message, Sampling
from comap.lm.base import Completion, Score, Scores
from comap.lm.tiny import build_tiny
from comap.trainers.comap.objective import ema_update
from comap.trainers.config import LoRA
from comap.trainers.roles import ROLES, Roles
from comap.trainers.samples import Sample, encode_samples

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

CORPUS = ["You see a cabinet 1, a shelf 2 and a fridge; go to take open close apple"] * 2
TALK = (Message("user", "You see a cabinet 1."),)
KINDS = pytest.mark.parametrize("kind", ["lora", "full"])
LORA = LoRA(r=2, targets=("q_proj", "down_proj"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny(
        tmp_path_factory.mktemp("models") / "tiny", CORPUS, parameters=200_000, max_length=256
    )


def opened(folder, kind, **options):
    return Roles.open(folder, kind=kind, device="cpu", **{"lora": LORA, **options})


def learn(roles, role, steps=2):
    """Train a role on next tokens, with a rate at which all its weights move."""
    roles.train_only(role)
    parameters = list(roles.parameters(role).values())
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    ids = torch.tensor([[3, 7, 30, 40, 50, 7, 9]])
    for _ in range(steps):
        optimizer.zero_grad()
        roles.module(role)(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


def all_weights(roles):
    """Copies of all weights: of each role and, by the name "base", of what is beneath adapters."""
    weights = {role: roles.state(role) for role in roles.names}
    beneath = {
        name: weight.detach().clone()
        for name, weight in roles.base(roles.names[0]).named_parameters()
        if roles.kind == "lora" and ".lora_" not in name
    }
    return weights | {"base": beneath}


def same(first, second):
    return list(first) == list(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def flags(roles):
    model = roles.module("wm")
    layers = [m.active_adapters for m in model.modules() if hasattr(m, "active_adapters")]
    return [
        [weight.requires_grad for weight in model.parameters()],
        [module.training for module in model.modules()],
        layers,
        getattr(model, "active_adapter", None),
    ]


def batch_of(names):
    words = ["cabinet", "shelf 2", "fridge and a fridge and a shelf", "apple"]
    talks = [(Message("user", f"You see a {word}."),) for word in words]
    hot = Sampling(12, temperature=1.0, seed=4)
    generates = [Generate(talk, hot, adapter=name) for talk in talks for name in names]
    return generates + [Score(talk, ("go to shelf 2",), adapter=n) for talk in talks for n in names]


def answers(lm, requests):
    """Sampled tokens, and log-probabilities to 4 digits."""
    generates = [request for request in requests if isinstance(request, Generate)]
    scored = [request for request in requests if isinstance(request, Score)]
    tokens = [reply.token_ids for reply in lm.generate(generates) if isinstance(reply, Completion)]
    totals = [reply.totals for reply in lm.score(scored) if isinstance(reply, Scores)]
    assert len(tokens) == len(generates) and len(totals) == len(scored)
    return tokens + [f"{value:.4g}" for total in totals for value in total]


@KINDS
@pytest.mark.parametrize("role", ["agent", "wm"])
def test_training_one_role_leaves_all_else_bit_for_bit(folder, kind, role):
    roles = opened(folder, kind)
    before = all_weights(roles)
    learn(roles, role)
    after = all_weights(roles)
    assert [name for name in before if not same(before[name], after[name])] == [role]
    moved = [
        name for name in before[role] if not torch.equal(before[role][name], after[role][name])
    ]
    assert len(moved) == len(before[role]), "every weight of the role is trained"


@KINDS
def test_the_teacher_begins_as_its_student_and_follows_it(folder, kind):
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
def test_using_puts_everything_back(folder, kind):
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


def test_new_adapters_depend_on_seed_and_role_alone(folder):
    torch.manual_seed(1)
    first = opened(folder, "lora", seed=3)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    reordered = opened(folder, "lora", seed=3, roles=("wm", "wm_ema", "agent"))
    assert torch.equal(state, torch.random.get_rng_state()), "others' random numbers stay"
    assert all(same(first.state(role), reordered.state(role)) for role in ROLES)
    other_seed = opened(folder, "lora", seed=4)
    assert not same(first.state("wm"), other_seed.state("wm"))
    for name, weight in first.state("agent").items():
        inside = weight.shape[1] ** -0.5
        assert bool((weight == 0).all()) is ("lora_B" in name)
        assert float(weight.abs().max()) <= inside
        assert "lora_B" in name or float(weight.abs().max()) > inside / 2


def test_adapters_are_as_asked_for(folder):
    roles = opened(folder, "lora", lora=LoRA(r=3, alpha=12, dropout=0.25, targets=("v_proj",)))
    config = roles.module("wm_ema").peft_config["wm_ema"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (3, 12, 0.25)
    names = {name.split(".")[-3] for name in roles.parameters("wm")}
    assert names == {"v_proj"}


def test_adapters_have_single_precision_on_a_model_of_half(folder):
    roles = opened(folder, "lora", dtype="bfloat16")
    assert roles.base("wm").dtype == torch.bfloat16
    for role in roles.names:
        assert {w.dtype for w in roles.parameters(role).values()} == {torch.float32}


@KINDS
def test_answers_are_those_of_the_role_that_is_named(folder, kind):
    roles = opened(folder, kind)
    lm = roles.language_model()
    learn(roles, "wm", steps=6)
    answers_by_role = {name: answers(lm, batch_of([name])) for name in (*roles.names, None)}
    assert answers_by_role["wm"] != answers_by_role["agent"]
    assert answers_by_role["wm_ema"] == answers_by_role["agent"] == answers_by_role[None]
    assert lm.config()["adapters"] == sorted(roles.names)
    assert lm.name == "tiny"
    unknown = lm.generate([Generate(TALK, adapter="wn")])[0]
    assert isinstance(unknown, LanguageModelError)


@KINDS
def test_exact_answers_do_not_depend_on_the_batch(folder, kind):
    roles = opened(folder, kind)
    learn(roles, "wm", steps=6)
    before, state = all_weights(roles), torch.random.get_rng_state()
    generates = [request for request in batch_of(list(ROLES)) if isinstance(request, Generate)]
    scored = [request for request in batch_of(list(ROLES)) if isinstance(request, Score)]
    together = roles.language_model(exact=True)
    batch_replies, single_replies = (
        together.generate(generates),
        [together.generate([request])[0] for request in generates],
    )
    for a, b in zip(batch_replies, single_replies, strict=True):
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, rel=1e-12)
    forth, back = together.score(scored), together.score(scored[::-1])[::-1]
    for forward_scores, backward_scores in zip(forth, back, strict=True):
        assert forward_scores.totals == pytest.approx(backward_scores.totals, rel=1e-12)
    assert all(same(before[name], after) for name, after in all_weights(roles).items())
    assert torch.equal(state, torch.random.get_rng_state())


@KINDS
def test_exact_answers_are_those_of_the_model_in_double_precision(folder, kind, tmp_path):
    roles = opened(folder, kind)
    learn(roles, "wm", steps=6)
    exact = roles.language_model(exact=True)
    score_requests = [request for request in batch_of(["wm"]) if isinstance(request, Score)]
    expected = exact.score(score_requests)
    out = roles.save(tmp_path / "out")
    places = {role: out / role for role in roles.names}
    if kind == "lora":
        double = opened(folder, kind, dtype="float64", saved=places)
    else:
        double = opened(places, kind, dtype="float64")
    for double_scores, exact_scores in zip(
        double.language_model().score(score_requests), expected, strict=True
    ):
        assert double_scores.totals == pytest.approx(exact_scores.totals, rel=1e-12)
    learn(roles, "wm", steps=2)
    for double_scores, exact_scores in zip(
        exact.score(score_requests), expected, strict=True
    ):  # the copies were taken then
        assert double_scores.totals == pytest.approx(exact_scores.totals, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lora": LoRA(targets=("nowhere",))}, "does not fit this model"),
        ({"dtype": "int8"}, "dtype cannot be"),
    ],
)
def test_bad_arguments_are_refused(folder, options, words):
    with pytest.raises(CoMapError, match=words):
        Roles.open(folder, **{"kind": "lora", "device": "cpu", **options})


def test_models_that_do_not_fit_together_are_refused(folder, tmp_path):
    other_vocabulary = build_tiny(tmp_path / "other", ["another word"] * 2, parameters=200_000)
    with pytest.raises(OptionError, match="to have one vocabulary, found that of wm"):
        opened({"agent": folder, "wm": other_vocabulary}, "full")
    shutil.copytree(folder, tmp_path / "speaks")
    (tmp_path / "speaks" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    with pytest.raises(OptionError, match="one chat template"):
        opened({"agent": folder, "wm": tmp_path / "speaks"}, "full")
    same_vocabulary = build_tiny(tmp_path / "o", CORPUS, parameters=200_000, max_length=256, seed=9)
    roles = opened({"agent": folder, "wm": same_vocabulary}, "full")
    assert not same(roles.state("agent"), roles.state("wm")), "these two do fit"
    assert same(roles.state("wm"), roles.state("wm_ema"))
    with pytest.raises(OptionError, match="there is no role 'wn'"):
        opened({"agent": folder, "wn": folder}, "full")
    with pytest.raises(OptionError, match="none for 'wm'"):
        opened({"agent": folder}, "full")
    with pytest.raises(OptionError, match="share one model"):
        opened({"agent": folder}, "lora")


@KINDS
def test_saved_roles_are_the_same_and_replace_older_ones(folder, tmp_path, kind):
    roles = opened(folder, kind)
    roles.save(tmp_path / "out")
    learn(roles, "wm")
    out = roles.save(tmp_path / "out", ("agent", "wm"))
    assert sorted(path.name for path in out.iterdir()) == ["agent", "wm", "wm_ema"]
    places = {role: out / role for role in ("agent", "wm", "wm_ema")}
    reopened = opened(folder, kind, saved=places) if kind == "lora" else opened(places, kind)
    for role in ("agent", "wm", "wm_ema"):
        assert same(reopened.state(role), roles.state(role)), role


def test_a_saved_adapter_of_other_settings_is_refused(folder, tmp_path):
    out = opened(folder, "lora").save(tmp_path / "out")
    with pytest.raises(OptionError, match=r"lora.r=4, found 2"):
        opened(folder, "lora", lora=LoRA(r=4), saved={"agent": out / "agent"})


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_samples_have_the_prompts_of_acting_with_variables_of_the_template_too(kind, tmp_path):
    from kits import template_families as templates

    folder = templates.model_folder(tmp_path / "model", "qwen3")
    talk = (Message("user", "You see a fridge."),)
    sizes = []
    for variables in ({}, {"enable_thinking": True}):
        roles = Roles.open(folder, kind=kind, device="cpu", chat_template_kwargs=variables)
        lm = roles.language_model()
        request = Generate(talk, Sampling(max_new_tokens=1), adapter=roles.names[0])
        (reply,) = lm.generate([request])
        sample = Sample(kind="act", messages=talk, reply=(("go", True),))
        (row,) = encode_samples(roles.chat, [sample])
        assert len(row.prompt) == reply.prompt_tokens
        expected_variables = {"enable_thinking": False, **variables}
        assert roles.chat.describe() == {"chat_template_kwargs": expected_variables}
        sizes.append(reply.prompt_tokens)
    assert sizes[0] > sizes[1], "an empty thought, or none"
    roles = Roles.open(folder, kind=kind, device="cpu", chat_template_kwargs={"enable_thinkin": 1})
    with pytest.raises(OptionError, match="enable_thinkin"):
        roles.language_model()
