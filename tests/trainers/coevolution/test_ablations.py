"""What each of the ten switches of CoMap, section 4.3, changes, and that it changes nothing else.

The stages run with real environments and real weights, but a language model that answers by a hash
stands in for texts, and learning is recorded: it moves a role's weights by one.
"""

from __future__ import annotations

import pytest

from comap.agents.comap import WorldStateGate
from comap.trainers.comap import coevolution
from comap.worldmodel import RetrievalWorldModel
from kits.trainings import Recorded, small

pytest.importorskip("trl")
WARMUP = ["warmup-policy", "warmup-rollouts", "warmup-world-model"]
INIT = ["reflection-drafts", "reflection-suffixes", "reflection-init"]
ROUND = [f"round-1-{part}" for part in ("rollouts", "world-model", "policy", "evaluation")]
ALL = [*WARMUP, *INIT, "round-0-evaluation", *ROUND]


def settings(**changed):
    """The smallest training, with enough episodes for all kinds of samples to occur."""
    defaults = {"frozen_transitions": 0, "diagnosed": 0, "tasks_per_round": 4, "tau_wm": 0.6}
    config = small(**{**defaults, **changed})
    return config


@pytest.fixture(scope="module")
def whole(player, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield Recorded(settings(), player, tmp_path_factory.mktemp("whole"), patch)


@pytest.fixture
def ablated(player, tmp_path, monkeypatch):
    def run(**changed):
        return Recorded(settings(**changed), player, tmp_path, monkeypatch)

    return run


def test_evaluation_with_seeds_is_greedy_beside_that(ablated):
    """The preset paper's: Table 5's temperature, several times each task, and greedily once."""
    no_warmups = {
        "reflection_init": False,
        "expert_sft": False,
        "world_model_warmup": False,
    }
    run = ablated(**no_warmups, rounds=0, evaluation_temperature=0.7, evaluation_seeds=2)
    (split,) = run.summary["stages"]["round-0-evaluation"]["splits"].values()
    assert split["episodes"] == 2 * split["greedy"]["episodes"] > 0


def test_labels_at_the_policys_own_states(ablated):
    """Its drafts are judged by an expert's word: nothing is played out."""
    labeled = {"label_states": "policy", "suffixes": 0, "anchor_rows": 7, "init_anchor": 1.0}
    run = ablated(**labeled, rounds=0, entry_tasks=1)
    assert run.stages == [
        *WARMUP,
        "entry-conditions",
        "reflection-play",
        *INIT[1:],
        "round-0-evaluation",
    ]
    stages = run.summary["stages"]
    assert (
        stages["entry-conditions"]["episodes"] == 8
        and len(stages["entry-conditions"]["conditions"]) == 4
    )
    assert stages["reflection-suffixes"]["branches"] == 0 < stages["reflection-suffixes"]["labels"]
    samples = stages["reflection-init"]["samples"]
    assert samples.pop("anchor") == 7 and sum(samples.values()) > 0
    (split,) = stages["round-0-evaluation"]["splits"].values()
    assert split["gate_shut"]["episodes"] == split["episodes"]


@pytest.mark.parametrize("learned", ["drafts", "no"])
def test_controls_learn_as_many_tokens_without_reflecting(ablated, learned):
    labeled = {"label_states": "policy", "suffixes": 0, "anchor_rows": 7, "init_anchor": 1.0}
    run = ablated(**labeled, learn_labels=learned, rounds=0)
    samples = run.samples("reflection-init")
    assert {sample.kind for sample in samples} == {"anchor"} and len(samples) > 7
    assert all(sample.text.startswith("Action: ") for sample in samples)
    model = RetrievalWorldModel(run.out / "models" / "retrieval.jsonl")
    assert len(model) > 0


def test_a_round_without_reflections_learns_its_anchors(ablated, monkeypatch):
    """Eq. 8 has their term in each round; they are as many as the steps that were played."""
    monkeypatch.setattr(coevolution, "rollout_samples", lambda *episodes, **options: iter(()))
    run = ablated(episode_filter="none")
    samples = run.samples("round-1-policy")
    assert {sample.kind for sample in samples} == {"anchor"}
    epochs = settings().policy_epochs
    assert len(samples) == epochs * sum(len(episode.steps) for episode in run.played())
    assert run.moved["round-1-policy"] == {"agent"}


def test_the_whole_training(whole):
    assert whole.stages == ALL and whole.summary["ablations"] == []
    assert {name: moved for name, moved in whole.moved.items() if moved} == {
        "warmup-policy": {"agent"},
        "warmup-world-model": {"wm", "wm_ema"},
        "reflection-init": {"agent"},
        "round-1-world-model": {"wm", "wm_ema"},
        "round-1-policy": {"agent"},
    }
    assert whole.adapters("round-1-rollouts") == {"agent", "wm", "wm_ema"}
    assert whole.adapters("round-0-evaluation") == {"agent", "wm"}
    sources = {notes["context_source"] for notes in whole.notes()}
    assert {"wm", "env"} <= sources
    assert set(whole.kinds("warmup-policy")) == {"warmup"}
    assert set(whole.kinds("warmup-world-model")) == {"warmup", "reading"}
    assert set(whole.kinds("round-1-world-model")) == {"world_model", "reading"}
    teacher = whole.learned["round-1-world-model"]["teacher"]
    assert (teacher.role, teacher.config.mu, teacher.config.divergence) == (
        "wm_ema",
        0.99,
        "forward_kl",
    )
    assert teacher.continuations is not None
    rows = [s for s in whole.samples("round-1-world-model") if s.kind == "world_model"]
    steps = sum(len(episode.steps) for episode in whole.played())
    assert len(rows) == steps
    assert all(s.scored and s.teacher != s.messages and s.weight == 1 for s in rows)
    assert whole.learned["round-1-world-model"]["objective"].keywords == {"eta": 0.5}
    kinds = whole.kinds("round-1-policy")
    assert kinds["anchor"] == sum(kinds.values()) - kinds["anchor"]
    assert set(kinds) <= {"anchor", "keep_draft", "revise_positive", "hq_reflect"}
    assert "head" in whole.learned["round-1-policy"]
    assert "teacher" not in whole.learned["round-1-policy"]


def test_without_future_state(whole, ablated):
    ablation = ablated(future_state=False)
    assert ablation.stages == ALL and ablation.moved == whole.moved
    for stage in (
        "reflection-drafts",
        "round-0-evaluation",
        "round-1-rollouts",
        "round-1-evaluation",
    ):
        assert ablation.adapters(stage) == {"agent"}, stage
    assert {(n["context_source"], n["context"]) for n in ablation.notes()} == {("none", "")}
    assert {n["predicted_next_state"] for n in ablation.evaluation()} == {None}
    for stage in ("reflection-init", "round-1-policy"):
        rows = [s for s in ablation.samples(stage) if s.label is not None]
        assert rows and all("Unknown." in s.messages[-1].content for s in rows), stage
        others = [s for s in whole.samples(stage) if s.label is not None]
        assert not all("Unknown." in s.messages[-1].content for s in others), stage


def test_without_expert_sft(whole, ablated):
    ablation = ablated(expert_sft=False)
    assert ablation.stages == [name for name in ALL if name != "warmup-policy"]
    for stage in ("reflection-init", "round-1-policy"):
        assert ablation.kinds(stage)["anchor"] == 0 < whole.kinds(stage)["anchor"]
        assert {s.weight for s in ablation.samples(stage)} == {1.0}
    assert ablation.kinds("warmup-world-model") == whole.kinds("warmup-world-model")


def test_without_reflection_init(whole, ablated):
    ablation = ablated(reflection_init=False)
    assert ablation.stages == [name for name in ALL if name not in INIT]
    for stage, requests in ablation.asked.items():
        assert requests == whole.asked[stage], stage
    assert ablation.kinds("round-1-policy") == whole.kinds("round-1-policy")


def test_without_action_gate(whole, ablated):
    shut = {"tau_p": 0.5}  # a head that learned nothing says 0.5: the gate never opens
    ablation = ablated(action_gate=False, **shut)
    assert ablation.stages == ALL
    for notes in (*ablation.notes(), *ablation.evaluation()):
        if notes.get("ref_action") is not None:
            assert notes["gate"] and notes["exec_action"] == notes["ref_action"]
    changed = [n for n in ablation.notes() if n["gate"] and n["gate_parts"]["changed"]]
    assert changed and not any(n["gate_parts"]["p"] for n in changed)
    assert {s.label for s in ablation.samples("round-1-policy")} >= {1.0}


@pytest.mark.parametrize("changed", [{"online_reflection": False}, {"alpha": 0.0}])
def test_without_online_reflection(whole, ablated, changed):
    ablation = ablated(**changed)
    assert (
        ablation.stages == ALL and ablation.asked == whole.asked and ablation.moved == whole.moved
    )
    assert ablation.kinds("reflection-init") == whole.kinds("reflection-init")
    anchors = whole.kinds("round-1-policy")["anchor"]
    assert ablation.kinds("round-1-policy") == {"anchor": anchors}, "as many demonstrated steps"
    assert {s.weight for s in ablation.samples("round-1-policy")} == {1.0}
    assert "head" not in ablation.learned["round-1-policy"], "without labels it has no gradient"


def test_with_executed_actions_as_anchors(whole, ablated):
    ablation = ablated(anchors="executed")
    assert (
        ablation.stages == ALL and ablation.asked == whole.asked and ablation.moved == whole.moved
    )
    assert ablation.kinds("round-1-policy") == whole.kinds("round-1-policy")

    def anchors(run):
        return {s.text for s in run.samples("round-1-policy") if s.kind == "anchor"}

    played = {f"Action: {step.action}" for episode in ablation.played() for step in episode.steps}
    assert anchors(ablation) <= played and not anchors(whole) <= played
    assert ablation.kinds("reflection-init") == whole.kinds("reflection-init")


def test_with_a_frozen_world_model(whole, ablated):
    ablation = ablated(world_model_evolution=False)
    assert ablation.stages == [name for name in ALL if name != "round-1-world-model"]
    assert all(
        not {"wm", "wm_ema"} & ablation.moved[name] for name in ROUND if name in ablation.moved
    )
    assert ablation.asked["round-1-rollouts"] == whole.asked["round-1-rollouts"]


def test_without_world_model_warmup(ablated):
    ablation = ablated(world_model_warmup=False)
    assert ablation.stages == [name for name in ALL if name not in WARMUP[1:]]
    assert [name for name in ablation.stages if "wm" in ablation.moved[name]] == [
        "round-1-world-model"
    ]
    first, roles = ablation.weights(), ablation.session.roles
    assert first["wm"] == first["wm_ema"], "both began as the base model, and moved alike here"
    assert set(roles.names) == {"agent", "wm", "wm_ema"}


def reverse_kl(student, teacher):
    log_s, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
    return (log_s.exp() * (log_s - log_t)).sum(-1)


def never(p, q, same, tau_p, tau_q):
    return False


def always(student, teacher, **parsed):
    return WorldStateGate(0.25, True)


def test_with_functions_of_ones_own(whole, player, tmp_path, monkeypatch):
    own_functions = {"divergence": reverse_kl, "action_gate": never, "state_gate": always}
    ablation = Recorded(settings(), player, tmp_path, monkeypatch, **own_functions)
    assert ablation.stages == ALL
    assert not any(notes["gate"] for notes in (*ablation.notes(), *ablation.evaluation()))
    assert any(notes["gate"] for notes in whole.notes())
    gated_notes = [notes for notes in ablation.notes() if notes["context_source"] != "none"]
    assert {(n["agreement"], n["context_source"]) for n in gated_notes} == {(0.25, "wm")}
    teacher = ablation.learned["round-1-world-model"]["teacher"]
    assert teacher.divergence is reverse_kl
    assert ablation.session.described()["changed"].keys() == own_functions.keys()
    assert "changed" not in whole.session.described()


def test_without_real_ce(whole, ablated):
    ablation = ablated(real_ce=False)
    assert (
        ablation.stages == ALL and ablation.asked == whole.asked and ablation.moved == whole.moved
    )
    rows = ablation.samples("round-1-world-model")
    assert all(s.kind == "world_model" and not s.scored and s.teacher for s in rows)
    assert ablation.kinds("warmup-world-model") == whole.kinds("warmup-world-model")


@pytest.mark.parametrize("changed", [{"wmsd": False}, {"eta": 0.0}])
def test_without_wmsd(whole, ablated, changed):
    ablation = ablated(**changed)
    assert ablation.stages == ALL and ablation.moved == whole.moved, (
        "the gate's teacher still follows"
    )
    teacher = ablation.learned["round-1-world-model"]["teacher"]
    assert (teacher.role, teacher.config.mu, teacher.continuations) == ("wm_ema", 0.99, None)
    rows = ablation.samples("round-1-world-model")
    assert all(s.scored and not s.teacher for s in rows)
    assert ablation.asked["round-1-rollouts"] == whole.asked["round-1-rollouts"]


def test_without_the_world_state_gate(ablated):
    ablation = ablated(world_state_gate=False)
    assert ablation.stages == ALL
    assert ablation.adapters("round-1-rollouts") == {"agent", "wm"}, "no teacher is asked"
    gated_notes = [notes for notes in ablation.notes() if notes["context_source"] != "none"]
    assert gated_notes and {n["context_source"] for n in gated_notes} == {"wm"}
    assert {n["wm_gate"] for n in gated_notes} == {None}
    assert all(n["context"] == (n["predicted_next_state"] or "") for n in gated_notes)
    teachers = {
        s.teacher == s.messages for s in ablation.samples("round-1-world-model") if s.teacher
    }
    assert teachers == {False}, "distillation still has its teacher"
