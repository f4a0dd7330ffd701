"""What a job measured, from its folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...agents.run import TRAJECTORIES
from ...agents.run_summary import recorded
from ...checksums import unseal
from ...envs.alfworld.goal import Goal
from ...envs.searchqa.questions import DATASETS
from ...errors import DataCorrupt, DataNotFound
from ...metrics import success_rate
from ...trajectory import Trajectory
from ..paw_record import PaWRecord, read_paw
from ..training_record import TrainingRecord, get, members, number, read_training
from .commands import VERDICTS
from .facts import told
from .jobs import Job

__all__ = ["Measure", "measures_of"]

_Z = 1.959964
_KINDS = {  # ALFWorld's kinds of tasks as PaW's Tables 1 and 5 name them
    "pick_and_place_simple": "Pick",
    "look_at_obj_in_light": "Look",
    "pick_clean_then_place_in_recep": "Clean",
    "pick_heat_then_place_in_recep": "Heat",
    "pick_cool_then_place_in_recep": "Cool",
    "pick_two_obj_and_place": "Pick2",
}
_SAMPLES = {  # as CoMap's Figure 7 names them: of which role, and of which kinds
    "samples.policy.warm-up": ("agent", ("warmup", "anchor")),
    "samples.policy.expert-draft": ("agent", ("expert_draft",)),
    "samples.policy.revise+": ("agent", ("revise_positive",)),
    "samples.policy.keep": ("agent", ("keep_draft",)),
    "samples.policy.hq": ("agent", ("hq_reflect",)),
    "samples.wm.warm-up": ("wm", ("warmup", "reading")),
    "samples.wm.self-distillation": ("wm", ("world_model",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One value that a job measured.

    Attributes:
        metric: What was measured.
        value: The value; None where it is text.
        unit: Its unit.
        split: The split; None for all splits together.
        low: Lower end of its 95 % interval, where one is known.
        high: Its upper end.
        n: Of how many tasks, transitions or decisions.
        over: What a figure's axis counts, where the value is one point of a curve.
        x: Its position there.
        method: The row that it belongs to, where one job fills several.
        text: What is told in words.
        trajectories: A file of trajectories, relative to the job's folder.
    """

    metric: str
    value: float | None = None
    unit: str = "%"
    split: str | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    over: str | None = None
    x: float | None = None
    method: str | None = None
    text: str | None = None
    trajectories: str | None = None


def measures_of(job: Job, folder: Path) -> list[Measure]:
    """Return all that a job that has ended measured.

    Args:
        job: The job.
        folder: Where its commands wrote.

    Raises:
        DataNotFound: Something that its commands write is not there.
        DataCorrupt: A file is not what they write.

    Example:
        >>> from comap.benchmarks.experiments.jobs import Job
        >>> from comap.benchmarks.experiments.recipes import recipe
        >>> made = recipe("settings-comap")
        >>> job = Job(id="told", recipe=made, policy=None, backbone=None, place=None, seed=0,
        ...     preset="paper", settings={}, needs={}, config_hash="")
        >>> measures_of(job, Path("nowhere"))[0].metric
        'setting'
    """
    read: Mapping[str, Callable[[Job, Path], list[Measure]]] = {
        "comap": _comap,
        "baseline": lambda job, folder: [],
        "paw": _paw,
        "play": _play,
        "predict": _predict,
        "noise": _noise,
        "overhead": _overhead,
        "told": lambda job, folder: [Measure(**one) for one in told(job)],
    }
    found = read[job.recipe.kind](job, folder)
    if job.place is not None and "/SearchQA-" in job.place.env:
        exact = [one for one in found if one.metric == "success_rate"]
        found = [*found, *(replace(one, metric="exact_match") for one in exact)]
    return [one for one in found if one.value is None or math.isfinite(one.value)]


# -- CoMap's training ----------------------------------------------------------------------------


def _comap(job: Job, folder: Path) -> list[Measure]:
    training = read_training(folder)
    rounds = training.evaluations()
    if not rounds:
        raise DataNotFound(f"expected an evaluation in {folder}, found none")
    last, found = rounds[-1]
    measures = [*_evaluation(found, f"round-{last}-evaluation", folder), *_revisions(found)]
    for place, one in rounds:
        measures += [_at(m, "round", place) for m in _evaluation(one)]
    for place, one in training.rollouts():
        for tau, share in members(one, "gates", "adoption").items():
            if share is not None:
                name = f"adoption.{tau}"
                measures.append(_percent(name, share, n=one["steps"], over="round", x=place))
    return [*measures, *_samples(training), *_costs(training)]


def _at(measure: Measure, over: str, x: float) -> Measure:
    return replace(measure, over=over, x=float(x), trajectories=None)


def _evaluation(
    found: Mapping[str, Any], stage: str | None = None, folder: Path | None = None
) -> Iterator[Measure]:
    """Yield success, score and Delta-F1 of an evaluation."""
    won, episodes = 0, 0
    for split, one in members(found, "splits").items():
        n = int(one["episodes"])
        won, episodes = won + round(one["success"] * n), episodes + n
        place = None if stage is None or folder is None else _file(folder, stage, split)
        yield _success(round(one["success"] * n), n, split, place)
        yield Measure(metric="score", value=100 * one["score"], split=split, n=n)
    if episodes:
        yield _success(won, episodes, None)
    for name, metric in (("frozen", "delta_f1"), ("on_policy", "delta_f1_on_policy")):
        scores = members(found, "world_model", name)
        for part, suffix in (("all", ""), ("nonempty", "_nonempty")):
            told_ = members(scores, part)
            value, error = number(told_, "delta_f1"), number(told_, "stderr")
            if value is not None:
                low, high = _around(value, error)
                n = int(told_["n"])
                yield Measure(metric=metric + suffix, value=value, low=low, high=high, n=n)
        nll = number(scores, "change_token_nll", "nll")
        if nll is not None:
            tokens = int(number(scores, "change_token_nll", "tokens") or 0)
            suffix = "" if name == "frozen" else "_on_policy"
            yield Measure(metric=f"change_token_nll{suffix}", value=nll, unit="nats", n=tokens)


def _file(folder: Path, stage: str, split: str) -> str | None:
    """Return an evaluation's file of trajectories, relative to the job's folder."""
    found = sorted(folder.glob(f"stages/*-{stage}/{split}-0/rank-*/{TRAJECTORIES}"))
    return found[0].relative_to(folder).as_posix() if found else None


def _revisions(found: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield the reflection diagnostics of CoMap's Table 3."""
    told_ = members(found, "revisions")
    for name in ("n", "drafts_succeed", "revised"):
        count = number(told_, name)
        if count is not None:
            yield Measure(metric=f"revisions.{name}", value=count, unit="count")
    for name, of in (("urr", "drafts_succeed"), ("hrr", "drafts_succeed"), ("brp", "revised")):
        value, n = number(told_, name), number(told_, of)
        if value is not None and n:  # of nothing, it says nothing
            yield Measure(metric=name, value=value, unit="share", n=int(n))


def _samples(training: TrainingRecord) -> Iterator[Measure]:
    """Yield how many samples of each kind were learned from (CoMap, Figure 7)."""
    learned = training.learned()
    for metric, (role, kinds) in _SAMPLES.items():
        counts = [
            int(members(result, "samples").get(kind, 0))
            for _, result in learned
            if result["role"] == role
            for kind in kinds
        ]
        yield Measure(metric=metric, value=float(sum(counts)), unit="count")


def _costs(training: TrainingRecord) -> Iterator[Measure]:
    """Yield what each phase cost (CoMap, Table 6)."""
    spent: dict[str, float] = {}
    for stage in training.stages:
        seconds = number(stage.result, "seconds") or 0.0
        phase = "warmup" if stage.name.startswith("warmup-") else "coevolution"
        part = {"wm": "wm", "agent": "policy"}.get(str(get(stage.result, "role")), "play")
        if stage.name.endswith(("-evaluation", "frozen-transitions")):
            phase, part = "evaluation", "all"
        for name in (f"seconds.{phase}.{part}", "seconds.all"):
            spent[name] = spent.get(name, 0.0) + seconds
    for name, seconds in spent.items():
        yield Measure(metric=name, value=seconds, unit="s")


# -- PaW's training ------------------------------------------------------------------------------

_CURVES = {
    "success": ("training_success", "%", 100.0),
    "return": ("training_reward", "", 1.0),
    "policy_loss": ("policy_loss", "", 1.0),
    "clip_fraction": ("clip_fraction", "%", 100.0),
    "wm_lambda": ("wm_lambda", "", 1.0),
    "wm_loss": ("wm_loss", "", 1.0),
    "wm_clipped_ratio": ("wm_clipped_ratio", "%", 100.0),
    "wm_probability": ("wm_probability", "share", 1.0),
}


def _paw(job: Job, folder: Path) -> list[Measure]:
    record = read_paw(folder)
    if not record.evaluations:
        raise DataNotFound(f"expected an evaluation in {folder}, found none")
    last = max(int(line["update"]) for line in record.evaluations)
    final = [line for line in record.evaluations if line["update"] == last]
    measures = [*_paw_evaluations(final, folder), *_paw_times(record)]
    for update in sorted({int(line["update"]) for line in record.evaluations}):
        lines = [line for line in record.evaluations if line["update"] == update]
        measures += [_at(one, "update", update) for one in _paw_evaluations(lines)]
    for name, (metric, unit, times) in _CURVES.items():
        for x, y in zip(*record.curve(name, times), strict=True):
            measures.append(Measure(metric=metric, value=y, unit=unit, over="update", x=x))
    return measures


def _paw_evaluations(
    lines: Iterable[Mapping[str, Any]], folder: Path | None = None
) -> Iterator[Measure]:
    lines = list(lines)
    won: list[int] = []
    for line in lines:
        split, own = str(line["split"]), [int(value) for value in line["won"].values()]
        won += own
        yield _success(sum(own), len(own), split)
        score = number(line, "score")
        if score is not None:
            yield Measure(metric="score", value=100 * score, split=split, n=len(own))
        if folder is not None:
            yield from _by_kind(folder, int(line["update"]), split)
            yield from _by_data_set(line["won"])
    yield _success(sum(won), len(won), None)
    scores = [(number(line, "score"), len(line["won"])) for line in lines]
    if all(score is not None for score, _ in scores) and won:
        total = sum(score * n for score, n in scores if score is not None)
        yield Measure(metric="score", value=100 * total / len(won), n=len(won))


def _by_kind(folder: Path, update: int, split: str) -> Iterator[Measure]:
    """Yield success by kind of task, on ALFWorld."""
    episodes: list[Trajectory] = []
    for path in sorted(folder.glob(f"evaluations/{update:04}-{split}-0/rank-*/{TRAJECTORIES}")):
        episodes += recorded(path)
    yield from _kinds(episodes, split)


def _by_data_set(won: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield success by data set, on search QA: there a task's id begins with the set's name."""
    found: dict[str, list[bool]] = {}
    for task, times in won.items():
        name = task.partition("/")[0]
        if name in DATASETS:
            found.setdefault(name, []).append(times > 0)
    for name, own in found.items():
        yield _success(sum(own), len(own), name)


def _kinds(episodes: Iterable[Trajectory], split: str | None) -> Iterator[Measure]:
    found: dict[str, list[bool]] = {}
    for episode in episodes:
        if "/ALFWorld-" not in episode.env_id:
            return
        goal = Goal.from_sentence(episode.goal)
        if goal is None:
            continue
        family = goal.family
        found.setdefault(_KINDS.get(family, family), []).append(episode.success)
    for kind, won in sorted(found.items()):
        one = _success(sum(won), len(won), split)
        yield Measure(
            metric=f"success_rate.{kind}",
            value=one.value,
            low=one.low,
            high=one.high,
            n=one.n,
            split=split,
        )


def _paw_times(record: PaWRecord) -> Iterator[Measure]:
    """Yield the mean seconds of each phase of an update but the first, where there are more."""
    for name in ("rollout", "old_logps", "advantages", "update"):
        _, seconds = record.curve(f"seconds_{name}")
        some = seconds[1:] or seconds
        if some:
            mean = sum(some) / len(some)
            yield Measure(metric=f"seconds.{name}", value=mean, unit="s", n=len(some))


# -- playing, predicting, gradients, time --------------------------------------------------------


def _play(job: Job, folder: Path) -> list[Measure]:
    found: list[Measure] = []
    won, episodes, scores = 0, 0, 0.0
    assert job.place is not None
    for split in job.place.splits:
        summary = _json(folder / split / "summary.json")
        n = int(summary["n"])
        rate = summary["success"]["value"]
        place = f"{split}/{TRAJECTORIES}"
        measure = _success(round(rate * n), n, split, place)
        if job.place.judge is not None:
            judged = _judged(folder / f"{split}-{VERDICTS}")
            measure = replace(judged, split=split, trajectories=place)
        found.append(measure)
        found.append(Measure(metric="score", value=100 * summary["score"], split=split, n=n))
        found += _kinds(recorded(folder / split / TRAJECTORIES), split)
        won, episodes, scores = won + round(rate * n), episodes + n, scores + n * summary["score"]
        if "trials" in summary:
            first = summary["trials"]["first"]["value"]
            found.append(_percent("success_rate_first_trial", first, n=n, split=split))
        per_step = summary["language_model"]["per_step"]
        for name in ("calls", "prompt_tokens", "completion_tokens"):
            found.append(
                Measure(metric=f"{name}_per_step", value=per_step[name], unit="", split=split)
            )
    if episodes and job.place.judge is None:  # columns pool verdicts themselves
        found.append(_success(won, episodes, None))
        found.append(Measure(metric="score", value=100 * scores / episodes, n=episodes))
    return found


def _judged(path: Path) -> Measure:
    """Return SoPR by a judge, from the file of scores of a split's answers."""
    told = members(_json(path), "sopr")
    mean, low, high, n = (number(told, name) for name in ("mean", "low", "high", "n"))
    if mean is None or low is None or high is None or n is None:
        raise DataCorrupt(f"expected SoPR with its interval in {path}, found none")
    found = Measure(metric="success_rate", value=100 * mean, n=int(n))
    return replace(found, low=100 * low, high=100 * high)


def _predict(job: Job, folder: Path) -> list[Measure]:
    result = _json(folder / "result.json")
    found = []
    for part, metric in (("all", "delta_f1"), ("nonempty", "delta_f1_nonempty")):
        told_ = members(result, "scores", part)
        value = number(told_, "delta_f1")
        if value is not None:
            low, high = _around(value, number(told_, "stderr"))
            n = int(told_["n"])
            found.append(Measure(metric=metric, value=value, low=low, high=high, n=n))
    return found


def _noise(job: Job, folder: Path) -> list[Measure]:
    result = _json(folder / "result.json")
    names = {"ce": "CE", "mae": "MAE", "cmae": "CMAE"}
    found = []
    for key, one in result["shares"].items():
        if one["share"] is not None:
            found.append(
                Measure(
                    metric="noise_gradient_share",
                    value=100 * one["share"],
                    low=None if one["low"] is None else 100 * one["low"],
                    high=None if one["high"] is None else 100 * one["high"],
                    n=result["transitions"],
                    method=names.get(key, key),
                )
            )
    return found


def _overhead(job: Job, folder: Path) -> list[Measure]:
    """Return what an update costs with PaW and without, and the ratio (PaW, Figure 5)."""
    result = _json(folder / "result.json")
    found = []
    for method, key, side in (("GRPO", "seconds_off", "off"), ("GRPO + PaW", "seconds_on", "on")):
        for name, told_ in result[key].items():
            metric = f"{'cpu_' if name == 'cpu' else ''}seconds.{'all' if name == 'cpu' else name}"
            value, low, high = (float(told_[part]) for part in ("median", "min", "max"))
            found.append(
                Measure(
                    metric=metric,
                    value=value,
                    unit="s",
                    low=low,
                    high=high,
                    n=result["pairs"],
                    method=method,
                )
            )
        memory = result["peak_bytes"]
        if memory is not None:
            gibibytes = memory[side] / 2**30
            found.append(Measure(metric="peak_memory", value=gibibytes, unit="GiB", method=method))
    return found


# -- small parts ---------------------------------------------------------------------------------


def _success(won: int, n: int, split: str | None, trajectories: str | None = None) -> Measure:
    rate = success_rate([True] * won + [False] * (n - won))
    return Measure(
        metric="success_rate",
        value=100 * rate.value,
        low=100 * rate.low,
        high=100 * rate.high,
        n=n,
        split=split,
        trajectories=trajectories,
    )


def _percent(metric: str, share: float, **more: Any) -> Measure:
    return Measure(metric=metric, value=100 * share, **more)


def _around(value: float, error: float | None) -> tuple[float | None, float | None]:
    if error is None:
        return None, None
    return max(value - _Z * error, 0.0), min(value + _Z * error, 100.0)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = unseal(path.read_bytes())
    except OSError as error:
        raise DataNotFound(f"expected a result in {path}, found none") from error
    except ValueError as error:
        raise DataCorrupt(f"expected a result in {path}, found {error}") from error
    if not isinstance(found, dict):
        raise DataCorrupt(f"expected a result in {path}, found {type(found).__name__}")
    return found
