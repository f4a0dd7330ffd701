"""WebEvolver's self-improvement: what is filtered and capped, and whole trainings of its arms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comap.errors import OptionError
from comap.facts import Delta, State
from comap.lm import Completion
from comap.trainers.baselines.config import baseline_preset
from comap.trainers.evaluation import score_depths
from comap.trainers.results import Fit
from comap.trajectory import Step, Trajectory
from comap.worldmodel import NullWorldModel, Prediction, Query, Transition, Turn
from kits.event_files import TRACKER, curves_of
from kits.scripted import HashedModel as Asked
from kits.trainings import Answers, demos_of, files_of, make_env, opened

pytest.importorskip("torch")
pytest.importorskip("trl")

from comap.trainers.baselines.webevolver import (
    HintedWorldModel,
    WebEvolverRun,
    capped,
    select,
)

WEB = "comap/Web-v0"
FEW = {
    "demonstrations": 3,
    "tasks_per_round": 2,
    "imagined_depth": 2,
    "predict_tokens": 8,
    "rounds": 2,
    "epochs": 1,
    "evaluation_tasks": 1,
    "evaluation_splits": ("valid_seen",),
    "scored_transitions": 2,
}


def episode(*turns, task="a", terminated=True, parsed=True, first="home"):
    steps = tuple(
        Step(
            t,
            action,
            text,
            0.0,
            False,
            False,
            False,
            State(),
            Delta(),
            notes={"draft_parsed": parsed},
        )
        for t, (action, text) in enumerate(turns, 1)
    )
    last = replace(steps[-1], terminated=terminated, truncated=not terminated, success=True)
    return Trajectory(WEB, task, "train", "goal", "me", first, State(), (*steps[:-1], last))


GOOD = episode(("click [7]", "a shop"), ("wait", "a shop"), ("stop [it]", "Answered."))


def test_each_filter_removes_what_it_names_and_tells_how_much():
    played = [
        GOOD,
        episode(("stop [x]", "Answered."), task="unread", parsed=False),
        episode(("stop [please log in]", "Answered."), task="login"),
        episode(("click [7]", "a shop"), task="cut", terminated=False),
        episode(("stop [N/A]", "Answered."), task="impossible"),
        replace(GOOD, task="refused"),
        replace(GOOD, task="fault", error="EngineError: x"),
        GOOD,
    ]
    filters = ("unparsed", "login", "unfinished", "idle", "duplicate")
    selection = select(played, lambda trajectory: trajectory.task != "refused", filters, set())
    assert [(selected.episode.task, selected.steps) for selected in selection.kept] == [
        ("a", (0, 2))
    ]
    report = selection.describe()
    assert report["removed"] == {
        "rejected": 1,
        "unparsed": 1,
        "login": 1,
        "unfinished": 2,
        "idle": 1,
        "duplicate": 1,
    }
    assert (report["accepted"], report["acceptance"], report["duplicates"]) == (6, 6 / 7, 1)


def test_without_filters_all_accepted_episodes_are_kept_whole():
    selection = select([GOOD, GOOD], lambda trajectory: True, (), set())
    assert [selected.steps for selected in selection.kept] == [
        (0, 1, 2)
    ] * 2 and selection.duplicates == 1


def test_caps_hold_for_each_start_and_each_action():
    def transition(first, action):
        return Transition(Query(WEB, "goal", (Turn(None, first),), State(), action), "a page")

    rows = [transition(f"page {n % 2}", f"click [{n % 5}]") for n in range(20)]
    assert capped(rows, None, None, 0) == list(range(20))
    assert len(capped(rows, 3, None, 0)) == 6 and len(capped(rows, None, 1, 0)) == 5
    assert capped(rows, 3, 1, 0) == capped(rows, 3, 1, 0) != capped(rows, 3, 1, 1)


def test_the_last_imagined_step_is_asked_for_what_the_task_needs():
    lm = Asked()
    model = HintedWorldModel(lm, depth=2, max_length=1024, max_new_tokens=64)
    turns = (Turn(None, "home"), Turn("look", "a desk"))
    first, last = (Query(WEB, "goal", turns[:n], State(), "wait") for n in (1, 2))
    hint = "This is the last step"
    assert hint not in model.prompt(first)[-1].content and hint in model.prompt(last)[-1].content


def test_delta_f1_by_depth_counts_changes_since_the_real_state():
    demos = demos_of(1)
    reads = make_env("train").get_wrapper_attr("canonicalizer")
    steps = len(demos[0].steps)
    null_scores = score_depths(NullWorldModel(), demos, reads, 100, 0, last=2)
    assert [*null_scores] == ["1", ">=2"] and null_scores["1"].n == steps

    class Knowing:
        source = "knowing"

        def predict(self, queries):
            steps = demos[0].steps
            return [Prediction(steps[len(query.history) - 1].observation) for query in queries]

    exact_scores = score_depths(Knowing(), demos, reads, 100, 0, last=2)
    assert exact_scores["1"].delta_f1 == exact_scores[">=2"].delta_f1 == 100


class Recorded:
    """A training whose models answer by a hash; what each stage would learn is noted, not learned."""

    def __init__(self, player, out, monkeypatch, **settings):
        config = baseline_preset("webevolver", "tiny", **{**FEW, **settings})
        roles = opened(config, player, config.roles())
        demos = demos_of(3) if config.shows_expert else ()
        options = {"report_to": TRACKER}
        self.run = WebEvolverRun(config, roles, make_env, demos, out, **options)
        self.learned, self.before = {}, {}
        lm = Answers(self.run.head.size)
        monkeypatch.setattr(roles, "language_model", lambda **arguments: lm)
        monkeypatch.setattr(self.run, "fit", self.fit)

    def weights(self, role):
        return sum(weight.double().sum().item() for weight in self.run.roles.state(role).values())

    def fit(self, stage, role, epochs, rate):
        self.before[stage.name] = self.weights(role)
        self.learned[stage.name] = epochs[0]
        for weight in self.run.roles.parameters(role).values():
            weight.data += 1
        return Fit(role=role, rows=len(epochs[0]), updates=1, log=())


def test_a_round_learns_anew_from_real_and_imagined_episodes(player, tmp_path, monkeypatch):
    record = Recorded(
        player, tmp_path, monkeypatch, start="expert", filters=None, imagined_share=0.3
    )
    run = record.run
    monkeypatch.setattr(
        run, "_judge_of", lambda stage, episodes: lambda trajectory: stage.name.endswith("imagine")
    )
    summary = run.run()
    rounds = {line["round"]: line for line in summary["rounds"]}
    assert set(rounds) == {0, 1, 2} and "imagine" not in rounds[1]
    assert rounds[2]["imagine"]["acceptance"] == 1.0 and rounds[2]["play"]["acceptance"] == 0.0
    assert rounds[2]["play"]["removed"] == {"rejected": 2}
    assert set(rounds[2]["delta_f1_by_depth"]) <= {"1", "2", "3", ">=4"}
    if TRACKER != "none":
        curves = curves_of(record.run.out)
        ((_, depth),) = curves["evaluation/delta_f1_by_depth/1/delta_f1"][-1:]
        assert depth == pytest.approx(rounds[2]["delta_f1_by_depth"]["1"]["delta_f1"])
        assert [value for _, value in curves["imagine/acceptance"]] == [1.0]
        assert len(curves["evaluation/splits/valid_seen/success"]) == 3
    learned = summary["stages"]["round-2-policy"]["episodes_learned"]
    assert learned == {"demonstrated": 3, "real": 0, "imagined": 1}  # at most 0.3 of all four
    for part in ("policy", "world-model"):  # a round begins with what the demonstrations made
        first, *later = (record.before[f"round-{number}-{part}"] for number in range(3))
        assert first < later[0] == later[1]
    imagined = run.episodes("round-2-imagine")
    assert all(step.imagined for trajectory in imagined for step in trajectory.steps)
    assert {len(trajectory.steps) for trajectory in imagined} <= {1, 2}
    sample_counts = [len(record.learned[f"round-{number}-world-model"]) for number in range(3)]
    assert sample_counts[0] < sample_counts[1] < sample_counts[2]


def test_the_policy_learns_to_score_how_episodes_ended(player, tmp_path, monkeypatch):
    record = Recorded(player, tmp_path, monkeypatch, start="expert", depth=2, learn_critic=True)
    monkeypatch.setattr(record.run, "_judge_of", lambda stage, episodes: lambda trajectory: False)
    record.run.run()
    assert "critic" not in {sample.kind for sample in record.learned["round-0-policy"]}
    rows = [sample for sample in record.learned["round-2-policy"] if sample.kind == "critic"]
    played = [
        trajectory
        for number in (1, 2)
        for trajectory in record.run.episodes(f"round-{number}-play")
    ]
    failed = sum(len(trajectory.steps) for trajectory in played)
    ends = [
        0.9**steps_left for demo in record.run.demos for steps_left in range(len(demo.steps))[::-1]
    ]
    scores = [*(f"Score: {end:.1f}" for end in ends), *["Score: 0.0"] * failed]
    assert [row.reply[0][0] for row in rows] == scores
    texts = [sample.messages[-1].content for sample in rows]
    assert any("(nothing is simulated)" in text for text in texts)
    assert any("Step 2: " in text for text in texts)


def test_a_training_that_was_stopped_goes_on_from_the_same_beginning(player, tmp_path, monkeypatch):
    whole = Recorded(player, tmp_path / "whole", monkeypatch, start="expert")
    whole.run.run()
    stopped_run = Recorded(player, tmp_path / "stopped", monkeypatch, start="expert")
    monkeypatch.setattr(stopped_run.run, "imagine_round", lambda stage, number: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stopped_run.run.run()
    resumed_run = Recorded(player, tmp_path / "stopped", monkeypatch, start="expert")
    resumed_run.run.run()
    assert set(resumed_run.learned) == {"round-2-policy"}
    for part in ("before", "learned"):
        assert (
            getattr(resumed_run, part)["round-2-policy"] == getattr(whole, part)["round-2-policy"]
        )
    assert files_of(tmp_path / "stopped") == files_of(tmp_path / "whole")


def test_only_imagined_episodes_are_learned_where_that_is_asked_for(player, tmp_path, monkeypatch):
    settings = {"learn_from": "imagined", "imagined_from": 1, "rounds": 1, "filters": None}
    record = Recorded(player, tmp_path, monkeypatch, start="expert", **settings)
    monkeypatch.setattr(
        record.run,
        "_judge_of",
        lambda stage, episodes: lambda trajectory: trajectory.steps[0].imagined,
    )
    record.run.run()
    assert {sample.kind for sample in record.learned["round-0-policy"]} == {"warmup"}
    assert {sample.kind for sample in record.learned["round-1-policy"]} == {"imagined"}


def test_a_model_without_demonstrations_or_a_world_model(player, tmp_path, monkeypatch):
    record = Recorded(player, tmp_path, monkeypatch, start="play", imagined_from=None, rounds=1)
    summary = record.run.run()
    assert record.run.roles.names == ("agent",)
    assert list(summary["stages"]) == [
        "round-0-evaluation",
        *("round-1-play", "round-1-policy", "round-1-evaluation"),
    ]
    assert (
        summary["stages"]["round-1-policy"]["samples"] == {}
    )  # it solves nothing, and stays as it was
    assert summary["results"]["valid_seen"]["episodes"] == 1
    assert {path.name for path in (tmp_path / "models").iterdir()} == {"agent"}


def test_the_untrained_model_judges_and_explains(player, tmp_path, monkeypatch):
    lm_requests = []
    settings = {
        "judged_by": "base",
        "rationale": True,
        "imagined_start": True,
        "filters": ("login",),
    }
    settings |= {"imagined_from": 1, "rounds": 1}
    record = Recorded(player, tmp_path, monkeypatch, start="play", **settings)

    def answer_by_purpose(lm, requests):
        lm_requests.extend(requests)
        text = {"judge": "It is done: SUCCESS", "rationale": "Doors open."}
        return [Completion(text[request.purpose]) for request in requests]

    monkeypatch.setattr("comap.trainers.sft.answer", answer_by_purpose)
    summary = record.run.run()
    assert {request.adapter for request in lm_requests} == {"base"}
    assert summary["rounds"][1]["play"]["acceptance"] == 1.0
    assert summary["stages"]["round-1-imagine"]["unsolved"] == 0  # all were accepted
    world = record.learned["round-1-world-model"]
    assert {sample.kind for sample in world} == {"transition", "start"}
    assert all(sample.text.startswith("Thought: ") for sample in world)
    assert {sample.kind for sample in record.learned["round-1-policy"]} == {"real"}
    question = (
        next(request for request in lm_requests if request.purpose == "judge").messages[-1].content
    )
    assert "LAST ACTION:" in question and "> " in question


def test_a_verdict_that_says_both_or_nothing_accepts_nothing(player, tmp_path, monkeypatch):
    record = Recorded(player, tmp_path, monkeypatch, start="play", judged_by="base")
    texts = {"a": "SUCCESS", "b": "NOT SUCCESS", "c": "NOT SUCCESS, or SUCCESS", "d": "Hm."}
    monkeypatch.setattr(
        record.run, "ask_each", lambda *arguments: {task: [text] for task, text in texts.items()}
    )
    accepted = record.run._judge_of(None, [])
    assert [task for task in texts if accepted(replace(GOOD, task=task))] == ["a"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filters": ("logn",)}, "no filter 'logn'; did you mean 'login'"),
        ({"learn_from": "imagined", "imagined_from": None}, "needs a world model"),
        ({"imagined_share": 1.0}, "imagined_share must be"),
        ({"depth": -1}, "depth"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        baseline_preset("webevolver", "paper", **settings)
