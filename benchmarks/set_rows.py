"""Rows of world models on a frozen set of transitions: scored, resumed, checked and shown.

A row follows from the predicted texts alone, which its file keeps: whoever has the file can score it
again. See `comap.benchmarks.evaluation_set`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..agents.requests import ModelWork
from ..envs.registry import text_env_of
from ..errors import DataCorrupt, DataNotFound, OptionError
from ..jsonl import sha256_of
from ..lm import Usage
from ..metrics import delta_f1
from ..redaction import without_secrets
from ..worldmodel import WorldModel, ask
from ..worldmodel.language import LanguageWorldModel
from .display import Display
from .evaluation_set import EvaluationSet, Item, manifest_of
from .record import circumstances, write_result
from .tables import Table, one_line

BENCHMARK = "world model set"
ROWS = Path(__file__).parent / "results"
PACKAGES = ("gymnasium", "numpy", "scipy", "torch", "transformers", "openai", "vllm")

_PART = 32  # transitions that are predicted together
_SAVE_SECONDS = 10.0  # between two times that a result under way is written
_LONGEST = 20_000  # characters of a prediction that are read
_RESAMPLES = 9_999
_CONFIDENCE = 0.95
_DIGITS = 6

_MEASURES: dict[str, frozenset[str]] = {
    "foreseeable": frozenset({"foreseeable", "end"}),
    "revealing": frozenset({"revealing"}),
    "idle": frozenset({"idle"}),
    "refused": frozenset({"refused"}),
}
"""Delta-F1 of some kinds of transitions, by the names in results."""

ModelOf = Callable[[str], WorldModel]
"""Returns the world model for an environment, by its id."""


class SetScoring:
    """Predicts the transitions of a set, and keeps what was predicted in a file.

    Args:
        evaluation_set: The set.
        about: What the result says of the world model: its ``name`` and its settings.
        out: The file of the result. One that the same model began is continued. None for none.

    Raises:
        OptionError: The file is another result's.
    """

    def __init__(
        self, evaluation_set: EvaluationSet, about: Mapping[str, Any], out: Path | None = None
    ):
        self._set = evaluation_set
        # As JSON has it: a list where a tuple was, to compare with what a file says.
        self._about = json.loads(json.dumps(without_secrets(dict(about))))
        self._out = out
        self.predictions: dict[str, str] = {}
        self.prompts: dict[str, str] = {}
        if out is not None and out.exists():
            self._resume(out)

    @property
    def total(self) -> int:
        """The number of transitions."""
        return sum(map(len, self._set.parts.values()))

    @property
    def remaining(self) -> int:
        """The number of transitions that are not yet predicted."""
        return self.total - len(self.predictions)

    def run(self, model_of: ModelOf, display: Display) -> dict[str, Any]:
        """Predict what is not yet predicted, say how far it is, and return the result.

        Where it is interrupted, what was predicted is scored and kept.
        """
        saved_at = time.monotonic()
        try:
            for env_id, items in self._set.parts.items():
                # Parts begin where they did before: an answer may depend on its batch.
                parts = [items[start : start + _PART] for start in range(0, len(items), _PART)]
                parts = [part for part in parts if part[-1].id not in self.predictions]
                if not parts:
                    continue

                display.begin(f"Preparing {env_id}")
                model = model_of(env_id)
                self._note_prompts(env_id, model, items[0])
                for part in parts:
                    display.begin(f"Predicting {env_id}")
                    self._predict(model, part, display)
                    display.move(len(self.predictions), self.total, "transitions")
                    if time.monotonic() - saved_at >= _SAVE_SECONDS:
                        self._write({})
                        saved_at = time.monotonic()
        finally:
            display.end()
            result = self.save()
        return result

    def save(self) -> dict[str, Any]:
        """Return the result of what was predicted so far, and write it to its file."""
        return self._write(scores_of_set(self._set, self.predictions))

    def _write(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result and write it; while the work goes on, without scores."""
        result = {
            "benchmark": BENCHMARK,
            "set": self._set.name,
            "sha256": self._set.sha256,
            **self._about,
            "prompts": dict(sorted(self.prompts.items())),
            "facts": facts_versions(self._set),
            "missing": sorted(self._set.missing),
            "complete": not self.remaining,
            "scores": scores,
            "predictions": dict(sorted(self.predictions.items())),
            **circumstances(PACKAGES),
        }
        if self._out is not None and self.predictions:
            write_result(self._out, result)
        return result

    def _predict(self, model: WorldModel, part: Sequence[Item], display: Display) -> None:
        """Predict some transitions."""
        usage: Usage | None = getattr(getattr(model, "lm", None), "usage", None)
        if usage is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
            count = len(self.predictions)
            display.work(ModelWork(min(count + _PART, self.total), count, tokens))
        predictions = ask(model, [item.transition.query for item in part])
        for item, prediction in zip(part, predictions, strict=True):
            self.predictions[item.id] = readable_text(prediction.observation)

    def _note_prompts(self, env_id: str, model: WorldModel, item: Item) -> None:
        """Note the SHA-256 of a part's first prompt: other prompts make another row."""
        inner = getattr(model, "model", model)
        if isinstance(inner, LanguageWorldModel):
            messages = inner.prompt(item.transition.query)
            texts = json.dumps([[message.role, message.content] for message in messages])
            self.prompts[env_id] = hashlib.sha256(texts.encode()).hexdigest()

    def _resume(self, path: Path) -> None:
        """Take over what a file has of the same set and model."""
        result = read_row_file(path)
        if result["sha256"] != self._set.sha256:
            raise OptionError(
                f"expected a result on the set {self._set.name} in {path}, found one on another set "
                f"({result['set']!r:.40}); choose another --out"
            )
        before = {name: result.get(name) for name in self._about}
        if before != self._about:
            names = [name for name in self._about if before[name] != self._about[name]]
            raise OptionError(
                f"expected a result of this world model in {path}, found one of "
                f"{before.get('name')!r:.80} (other {', '.join(names)}); choose another --out"
            )
        ids = {item.id for items in self._set.parts.values() for item in items}
        self.predictions = {key: text for key, text in result["predictions"].items() if key in ids}
        self.prompts = dict(result["prompts"])


def readable_text(text: str) -> str:
    """Return a prediction as it is scored and kept: not endless, and without what no file can hold."""
    return text[:_LONGEST].encode("utf-8", "replace").decode("utf-8")


def facts_versions(evaluation_set: EvaluationSet) -> dict[str, str]:
    """Return by which canonicalizers a set's facts are read."""
    return {env_id: _canonicalizer(env_id).version for env_id in evaluation_set.parts}


def _canonicalizer(env_id: str) -> Any:
    return text_env_of(env_id).canonicalizer


def scores_of_set(evaluation_set: EvaluationSet, predictions: Mapping[str, str]) -> dict[str, Any]:
    """Return the scores of predicted texts: by environment, and the means of these.

    Args:
        evaluation_set: The set.
        predictions: The predicted texts by the ids of transitions. Those that are not there yet are
            left out.

    Returns:
        ``environments``: for each its numbers, as shares, with a 95 % interval of Delta-F1 (bootstrap
        over tasks, since transitions of one task depend on each other). ``mean``: over the
        environments that anybody can score. ``mean_all``: over all of them; None without
        ScienceWorld.

    Example:
        >>> from comap.benchmarks.evaluation_set import load_evaluation_set
        >>> evaluation_set = load_evaluation_set("v1")
        >>> items = evaluation_set.parts["comap/ALFWorld-v0"]
        >>> truth = {item.id: item.transition.observation for item in items}
        >>> scores_of_set(evaluation_set, truth)["environments"]["comap/ALFWorld-v0"]["delta_f1"]
        1.0
    """
    environments: dict[str, Any] = {}
    draws: dict[str, Any] = {}
    for env_id, items in evaluation_set.parts.items():
        scored = [item for item in items if item.id in predictions]
        if scored:
            environments[env_id], draws[env_id] = _scores(env_id, scored, predictions)

    about = manifest_of(evaluation_set.name)["environments"]
    stored = [env_id for env_id, part in about.items() if part["stored"]]
    return {
        "environments": environments,
        "mean": _mean_over(stored, environments, draws),
        "mean_all": _mean_over(list(about), environments, draws),
    }


def _scores(
    env_id: str, items: Sequence[Item], predictions: Mapping[str, str]
) -> tuple[dict[str, Any], Any]:
    """Return the numbers of an environment, and the bootstrap's means of Delta-F1."""
    canonicalizer = _canonicalizer(env_id)
    values: list[float] = []
    unreadable = 0
    same_texts = 0
    for item in items:
        query, observation = item.transition
        text = predictions[item.id]
        predicted = canonicalizer.update(query.state, query.action, text)
        values.append(delta_f1(query.state, predicted, item.after))
        unreadable += not predicted.parsed
        same_texts += text.strip() == observation.strip()

    low, high, means = _interval([item.task for item in items], values)
    numbers: dict[str, Any] = {
        "n": len(items),
        "tasks": len({item.task for item in items}),
        "delta_f1": _mean(values),
        "low": low,
        "high": high,
    }
    for name, kinds in _MEASURES.items():
        numbers[name] = _mean(
            [value for item, value in zip(items, values, strict=True) if item.kind in kinds]
        )
    numbers["same_text"] = round(same_texts / len(items), _DIGITS)
    numbers["unreadable"] = round(unreadable / len(items), _DIGITS)
    return numbers, means


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), _DIGITS) if values else None


def _interval(tasks: Sequence[str], values: Sequence[float]) -> tuple[float, float, Any]:
    """Return the ends of a mean's percentile bootstrap interval over tasks, and the drawn means."""
    import numpy as np

    sums: dict[str, list[float]] = {}
    for task, value in zip(tasks, values, strict=True):
        sums.setdefault(task, []).append(value)
    totals = np.array([sum(row) for row in sums.values()])
    counts = np.array([len(row) for row in sums.values()])
    if len(totals) < 2:
        mean = float(totals.sum() / counts.sum())
        return round(mean, _DIGITS), round(mean, _DIGITS), np.array([mean])

    from scipy.stats import bootstrap

    def mean_of(sums_of_tasks: Any, counts_of_tasks: Any, axis: int = -1) -> Any:
        return sums_of_tasks.sum(axis=axis) / counts_of_tasks.sum(axis=axis)

    # The percentile method, as in comap.metrics: bias-corrected ones fail where all tasks agree.
    result = bootstrap(
        (totals, counts),
        mean_of,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=_CONFIDENCE,
        method="percentile",
        rng=0,
    )
    interval = result.confidence_interval
    ends = (round(float(interval.low), _DIGITS), round(float(interval.high), _DIGITS))
    return *ends, result.bootstrap_distribution


def _mean_over(
    env_ids: Sequence[str], environments: Mapping[str, Any], draws: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the mean Delta-F1 over environments with its interval; None where one is not scored."""
    if not all(env_id in environments for env_id in env_ids):
        return None
    import numpy as np

    # The tasks of environments are drawn apart from each other. Orders are mixed: with one seed the
    # k-th draw is of the same places in each.
    rng = np.random.default_rng(0)
    means = np.mean([rng.permutation(_as_many(draws[env_id])) for env_id in env_ids], axis=0)
    tail = 50 * (1 - _CONFIDENCE)
    low, high = np.percentile(means, [tail, 100 - tail])
    return {
        "environments": len(env_ids),
        "delta_f1": _mean([environments[env_id]["delta_f1"] for env_id in env_ids]),
        "low": round(float(low), _DIGITS),
        "high": round(float(high), _DIGITS),
    }


def _as_many(means: Any) -> Any:
    """Return as many drawn means as of the other environments: of one task there is but one."""
    import numpy as np

    return means if len(means) > 1 else np.repeat(means, _RESAMPLES)


def read_row_file(path: Path) -> dict[str, Any]:
    """Return the result in a file, whose form is right; nothing in it is believed yet.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is no result of `comap score world-model --set`.
    """
    try:
        result = json.loads(path.read_bytes())
    except OSError as error:
        raise DataNotFound(
            f"expected the result of comap score world-model --set at {path}, found: {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(_not_a_row(path, type(error).__name__)) from error

    if not isinstance(result, dict) or result.get("benchmark") != BENCHMARK:
        raise DataCorrupt(_not_a_row(path, "another file"))
    predictions = result.get("predictions")
    forms = {
        "set": str,
        "sha256": str,
        "name": str,
        "facts": dict,
        "prompts": dict,
        "scores": dict,
        "missing": list,
    }
    for name, form in forms.items():
        if not isinstance(result.get(name), form):
            raise DataCorrupt(_not_a_row(path, f"no {name}"))
    if not isinstance(predictions, dict) or not all(
        isinstance(text, str) and text == readable_text(text) for text in predictions.values()
    ):
        raise DataCorrupt(_not_a_row(path, "no predictions"))
    return result


def _not_a_row(path: Path, problem: str) -> str:
    return (
        f"expected the result of comap score world-model --set in {path}, found {problem}; write one "
        "with comap score world-model --set v1 --out FILE"
    )


def checked_row(path: Path, evaluation_set: EvaluationSet) -> dict[str, Any]:
    """Return the result in a file after it was scored again from its predicted texts.

    It has the scores of what can be scored here; ``unchecked`` lists the other environments.

    Raises:
        DataNotFound, DataCorrupt: There is no result, or the numbers do not follow from its texts.
        OptionError: It is on another set, read by other rules, or not complete.
    """
    result = read_row_file(path)
    if result["sha256"] != evaluation_set.sha256:
        raise OptionError(
            f"expected a result on the set {evaluation_set.name} (SHA-256 "
            f"{evaluation_set.sha256[:16]}), found one on {result['set']!r:.40} "
            f"({result['sha256']!r:.18}); score the model again"
        )
    versions = facts_versions(evaluation_set)
    others = [
        env_id
        for env_id, version in versions.items()
        if result["facts"].get(env_id, version) != version
    ]
    if others:
        raise OptionError(
            f"expected facts as this comap reads them, found others of {', '.join(others)}; score the "
            "model again with this version"
        )

    # A part that was not on the model's machine is no fault of the row.
    for env_id, items in evaluation_set.parts.items():
        lacking = [item.id for item in items if item.id not in result["predictions"]]
        is_left_out = env_id in result["missing"] and len(lacking) == len(items)
        if lacking and not is_left_out:
            raise OptionError(
                f"expected predictions of all {len(items)} transitions of {env_id}, found "
                f"{len(items) - len(lacking)}; give the same command again, with the same --out, to go on"
            )

    scores = scores_of_set(evaluation_set, result["predictions"])
    stated_environments = result["scores"].get("environments")
    if not isinstance(stated_environments, dict):
        stated_environments = {}
    for env_id, numbers in scores["environments"].items():
        if stated_environments.get(env_id) != numbers:
            raise DataCorrupt(
                f"the numbers of {env_id} in {path} do not follow from its predictions "
                f"({_percent(numbers['delta_f1'])} by them); write the file with comap score "
                "world-model --set, and leave it as it is"
            )
    for name in ("mean", "mean_all"):
        if scores[name] is not None and result["scores"].get(name) != scores[name]:
            raise DataCorrupt(
                f"the {name} in {path} does not follow from its predictions; leave the file as it is"
            )

    # What cannot be scored here is not believed, and not shown.
    known = manifest_of(evaluation_set.name)["environments"]
    unchecked = [
        env_id
        for env_id in known
        if env_id in stated_environments and env_id not in scores["environments"]
    ]
    return {**result, "scores": scores, "unchecked": unchecked}


@cache
def reference_rows(name: str) -> tuple[dict[str, Any], ...]:
    """Return the rows that are recorded of a set; none where the file is of another set."""
    path = ROWS / f"world_model_set_{name}.json"
    if not path.is_file():
        return ()
    recorded = json.loads(path.read_bytes())
    return tuple(recorded["rows"]) if recorded["sha256"] == manifest_of(name)["sha256"] else ()


def row_of(result: Mapping[str, Any], path: Path | None = None) -> dict[str, Any]:
    """Return a result without its predicted texts, as tables and pages take it."""
    names = (
        "name",
        "world_model",
        "engines",
        "prompts",
        "missing",
        "scores",
        "date",
        "versions",
        "hardware",
    )
    row = {name: result[name] for name in names if name in result}
    if path is not None:
        row["file_sha256"] = sha256_of(path)
    return row


def write_rows(path: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows of a set: the higher mean first."""
    ordered = sorted(rows, key=lambda row: (-_mean_of_row(row), row["name"]))
    write_result(
        path,
        {
            "benchmark": "world model set rows",
            "set": name,
            "sha256": manifest_of(name)["sha256"],
            **circumstances(("numpy", "scipy")),
            "rows": ordered,
        },
    )


def _mean_of_row(row: Mapping[str, Any]) -> float:
    mean = row["scores"]["mean"]
    return float(mean["delta_f1"]) if mean else -1.0


def environments_table(result: Mapping[str, Any]) -> Table:
    """Return the scores of a result as a table, with a line for each environment."""
    rows = []
    for env_id, numbers in result["scores"]["environments"].items():
        rows.append(
            (
                env_id,
                numbers["n"],
                _with_interval(numbers),
                *(_percent(numbers[name]) for name in (*_MEASURES, "same_text", "unreadable")),
            )
        )
    columns = (
        "environment",
        "n",
        "Delta-F1 [95 %]",
        "foreseeable",
        "revealing",
        "idle",
        "refused",
        "same text",
        "unreadable",
    )
    note = "Delta-F1 in %, by kind of transition; its interval is a bootstrap over tasks."
    for env_id in result["missing"]:
        note += (
            f" {env_id} is not scored: it needs Java (pip install 'comap-agents[scienceworld]')."
        )
    title = f"{one_line(result['name'], 60)} on the set {result['set']}"
    return Table(title, columns, tuple(rows), note)


def rows_table(name: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return world models beside each other as a table: the mean, and each environment's Delta-F1."""
    env_ids = list(manifest_of(name)["environments"])
    lines = []
    for row in rows:
        scores = row["scores"]
        cells = []
        for env_id in env_ids:
            numbers = scores["environments"].get(env_id)
            cells.append(_percent(numbers["delta_f1"]) if numbers else "–")
        lines.append(
            (
                one_line(row["name"], 60),
                _with_interval(scores["mean"]),
                _with_interval(scores["mean_all"]),
                *cells,
            )
        )
    short_names = [env_id.rpartition("/")[2].partition("-v")[0] for env_id in env_ids]
    stored = sum(part["stored"] for part in manifest_of(name)["environments"].values())
    columns = ("world model", f"mean of {stored}", f"mean of {len(env_ids)}", *short_names)
    note = (
        "Delta-F1 in % [95 %]. The oracle tries each action in the environment: the most there is."
    )
    return Table(f"World models on the set {name}", columns, tuple(lines), note)


def _with_interval(numbers: Mapping[str, Any] | None) -> str:
    if numbers is None:
        return "–"
    ends = f"{100 * numbers['low']:.1f}, {100 * numbers['high']:.1f}"
    return f"{100 * numbers['delta_f1']:.1f} [{ends}]"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
