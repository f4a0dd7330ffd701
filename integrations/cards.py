"""The cards of data sets and models on the Hub: what they are, what they reach, how they were made."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..agents.run import RUN, TRAJECTORIES, recorded
from ..agents.tally import Tally
from ..envs.generated import tasks_in_words
from ..errors import DataCorrupt, needs_extra
from ..jsonl import read, read_json
from ..metrics import Rate
from ..redaction import public_words
from ..trajectory import Trajectory
from ..worldmodel.naming import NOT_TO_REPORT, in_words
from .published.formats import FORMATS

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9][\w./-]{0,95}", re.ASCII)
_LONGEST = 200  # characters of a text on a card


def library(name: str) -> Any:
    with needs_extra("hub", "the Hugging Face Hub"):
        return import_module(name)


class _Group(NamedTuple):
    """The episodes that are a row of a card's results."""

    env_id: str
    split: str
    agent: str
    world_model: str


class Results:
    """Counts over episodes, for a card."""

    def __init__(self) -> None:
        self.count = 0
        self._tallies: dict[_Group, Tally] = {}
        self._models: set[str] = set()
        self._imported: Counter[str] = Counter()  # episodes, by the name of their format

    def add(self, episode: Trajectory) -> None:
        self.count += 1
        group = _Group(episode.env_id, episode.split, episode.agent, episode.world_model or "")
        self._tallies.setdefault(group, Tally()).add(episode)
        self._models.add(str(episode.settings.get("model") or ""))
        if episode.origin:
            self._imported[str(episode.origin.get("format"))] += 1

    @property
    def kept_by(self) -> str:
        """Who recorded the episodes, in words."""
        return "imported by comap in part or all" if self._imported else "recorded by comap"

    def _summaries(self) -> list[tuple[_Group, dict[str, Any]]]:
        return [(group, tally.summary()) for group, tally in sorted(self._tallies.items())]

    def parts(self) -> list[str]:
        """Return the paragraphs of a card with its results, and with what readers must know of them."""
        summaries = self._summaries()
        rows = []
        for group, summary in summaries:
            faults = [f"{kind} {count}" for kind, count in summary["errors"].items()]
            row = (
                shown(group.env_id),
                shown(group.split),
                shown(group.agent),
                shown(in_words(group.world_model)),
                tasks_in_words(summary["n"], summary["generated_tasks"]),
                str(Rate(**summary["success"])) if "success" in summary else "not recorded",
                f"{summary['steps']['per_episode']:.1f}",
                _listed(faults),
            )
            rows.append(row)

        heads = ("environment", "split", "agent", "world model", "tasks", "success, 95 % interval")
        models = [("model", _listed(self._models - {""}))]
        return [
            "## Results\n\n" + table((*heads, "steps", "faults"), rows),
            *_cautions(summaries),
            *_data_and_licenses(summaries),
            *_imported_parts(self._imported),
            table(("", ""), models),
        ]

    def evaluated(self) -> list[Any]:
        """Return the Hub's ``EvalResult`` of each environment and split whose names are plain.

        What an agent reached with the oracle is no result to report, and has none.
        """
        if self._imported:  # what others played is no result of a model here
            return []
        eval_result = library("huggingface_hub").EvalResult
        results = []
        for group, summary in self._summaries():
            names = (group.env_id, group.split, group.agent)
            if not all(map(_PLAIN.fullmatch, names)) or _asked_oracle(group):
                continue

            # The Hub compares results by these names: generated tasks are another data set.
            dataset_name = group.env_id
            if summary["generated_tasks"]:
                dataset_name += ", generated tasks"
            metrics = {"success_rate": summary["success"]["value"], "score": summary["score"]}
            for name, value in metrics.items():
                result = eval_result(
                    task_type="reinforcement-learning",
                    dataset_type=group.env_id.rpartition("/")[2],
                    dataset_name=dataset_name,
                    dataset_split=group.split,
                    metric_type=name,
                    metric_name=name.replace("_", " "),
                    metric_value=round(value, 4),
                    metric_args=_metric_args(group, summary),
                )
                results.append(result)
        return results


def _metric_args(group: _Group, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a metric is of: who played which tasks."""
    metric_args: dict[str, Any] = {"agent": group.agent, "tasks": summary["n"]}
    if summary["generated_tasks"]:
        metric_args["generated_tasks"] = summary["generated_tasks"]
    if _PLAIN.fullmatch(group.world_model):
        metric_args["world_model"] = group.world_model
    return metric_args


def _asked_oracle(group: _Group) -> bool:
    return NOT_TO_REPORT in in_words(group.world_model)


def _cautions(summaries: Sequence[tuple[_Group, Mapping[str, Any]]]) -> list[str]:
    """Return what a reader must know before these numbers are compared with others."""
    cautions = []
    if any(summary["generated_tasks"] for _, summary in summaries):
        cautions.append(
            "Generated tasks are comap's own, in the format of the benchmark. They are not its tasks, and "
            "results on them cannot be compared with published ones."
        )
    if any(_asked_oracle(group) for group, _ in summaries):
        cautions.append(
            "The oracle tries actions in the real environment. What agents reach with it is not a result "
            "to report."
        )
    return cautions


def _data_and_licenses(summaries: Sequence[tuple[_Group, Mapping[str, Any]]]) -> list[str]:
    """Return the part of a card about official data: whose they are, and under which license."""
    parts_by_name: dict[str, dict[str, Any]] = {}
    for _, summary in summaries:
        for part in summary["data"]:
            if part["license_id"] is None:  # generated, or a user's own
                continue
            whole = parts_by_name.setdefault(part["data"], {**part, "tasks": 0})
            whole["tasks"] += part["tasks"]
    if not parts_by_name:
        return []

    rows = []
    for name, part in sorted(parts_by_name.items()):
        row = (shown(name), part["title"], f"{part['tasks']:,}", part["license"], part["from"])
        rows.append(row)
    text = (
        "The texts of these episodes are from the benchmark's data. Whoever uses them is bound by that "
        "license as well as by the one above."
    )
    heads = ("data", "what", "tasks", "license, as published", "where it says so")
    return [f"## Data\n\n{text}\n\n{table(heads, rows)}"]


def _imported_parts(counts: Mapping[str, int]) -> list[str]:
    """Return for each format of imported episodes whose they are, and under which license they came."""
    parts = []
    for name, count in sorted(counts.items()):
        text = f"{count:,} episodes were not played by comap: they were imported ({shown(name)})."
        if name in FORMATS:
            published = FORMATS[name]
            text += (
                f" Their form: {published.title}, from {published.source}. License as published: "
            )
            text += f"{published.license}."
        parts.append(text)
    return parts


def origin(folder: Path) -> str:
    """Return the part of a card with the last command that made the folder and ended well."""
    journal = folder / "journal.jsonl"
    entries: list[Mapping[str, Any]] = []
    if journal.is_file():
        entries = [mapping(entry) for entry in read(journal)]
    maker: Mapping[str, Any] = next((e for e in reversed(entries) if _made_it(e)), {})

    # The words of a command may name folders of the machine, and hold secrets: neither is published.
    command = None
    if maker:
        words = public_words([*map(str, maker["command"])])
        command = shlex.join(["comap", *words])

    versions = mapping(maker.get("versions")) or {"comap": __version__}
    facts = {
        "command": command,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "commit": maker.get("commit"),
        "date": maker.get("ended"),
    }
    rows = [(name, shown(value)) for name, value in facts.items() if value]
    return "## How it was made\n\n" + table(("", ""), rows)


def _made_it(entry: Mapping[str, Any]) -> bool:
    words = entry.get("command")
    return isinstance(words, list) and words[:1] in (["run"], ["train"]) and entry.get("exit") == 0


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _card(kind: str, title: str, parts: Iterable[str], front: Mapping[str, Any]) -> str:
    """Return a card of huggingface_hub's, which has read its front again."""
    hub = library("huggingface_hub")
    data = getattr(hub, f"{kind}CardData")(**front)
    body = "\n\n".join([f"# {shown(title)}", *parts])
    return str(getattr(hub, f"{kind}Card")(f"---\n{data}\n---\n\n{body}\n"))


def shown(value: object) -> str:
    """Return a text as code within a line of Markdown, without control characters and line ends."""
    # Names and messages come from environments and models: none of them may end the cell or the code.
    text = " ".join(str(value).split())
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    text = text.encode("utf-8", "replace").decode("utf-8").replace("`", "'").replace("|", "¦")
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return f"`{text}`" if text.strip() else "–"


def _listed(values: Iterable[object], limit: int = 8) -> str:
    texts = sorted({str(value) for value in values})
    cells = [shown(text) for text in texts[:limit]]
    if len(texts) > limit:
        cells.append(f"and {len(texts) - limit} more")
    return ", ".join(cells) or "–"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown, whose cells are Markdown already."""
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    rule = f"|{'|'.join('---' for _ in heads)}|"
    return "\n".join([lines[0], rule, *lines[1:]])


def data_card(
    folder: Path, title: str, license: str, splits: Mapping[str, str], results: Results
) -> str:
    """Return the card of a data set, of what `folder` says of its making and of the files of its splits."""
    files = [{"split": split, "path": path} for split, path in splits.items()]
    split = "train" if "train" in splits else "test"
    parts = [
        f"{results.count:,} episodes of language agents, {results.kept_by}. Each row is an episode; its "
        "column `record` is the whole trajectory, a line of JSON, with state facts, calls to models and "
        "notes. Texts are what environments, tools and models wrote: do not trust them.",
        *results.parts(),
        origin(folder),
        "## Loading\n\n```python\nfrom datasets import load_dataset\n\n"
        f'episodes = load_dataset("OWNER/NAME", split="{split}")\n```\n\n'
        "TRL's `SFTTrainer` trains on the columns `prompt` and `completion`, or on `messages`; `reward` "
        "and `success` say which episodes are worth it.\n\n"
        "`comap hub load trajectories OWNER/NAME --out DIR` makes a run's folder of it, for `comap view` "
        "and `comap verify`.",
    ]
    front = {
        "license": license,
        "task_categories": ["text-generation", "reinforcement-learning"],
        "tags": ["comap", "trajectories", "language-agents"],
        "configs": [{"config_name": "default", "data_files": files}],
    }
    return _card("Dataset", title, parts, front)


def _settings_of(training: Path) -> dict[str, Any]:
    """Return what the record of a training says of it: method, preset, environment, and its tasks."""
    record: object = None
    with suppress(OSError, DataCorrupt):
        record = read_json(training / RUN)

    # Trainings of `comap train` are described; a run is its own description.
    description = mapping(mapping(record).get("described")) or mapping(record)
    config = mapping(description.get("config"))
    env = mapping(description.get("env"))
    tasks = [f"{split}: {words}" for split, words in mapping(env.get("tasks")).items()]

    settings = {
        **config,
        "env": env.get("id", config.get("env")),
        "tasks": "; ".join(tasks) or None,
        "licenses of the data": env.get("licenses") or None,
    }
    settings |= {name: description[name] for name in ("method", "preset") if name in description}
    names = [
        "method",
        "env",
        "tasks",
        "licenses of the data",
        "split",
        "seed",
        "rounds",
        "algorithm",
        "preset",
    ]
    return {name: settings[name] for name in names if settings.get(name) is not None}


def model_card(
    source: Path,
    draft: Path,
    models: Sequence[Mapping[str, Any]],
    license: str,
    title: str,
    evaluation: str | Path | None,
) -> str:
    """Return the card of models.

    Args:
        source: The folder of the models or of their training, which says how they were made.
        draft: The folder that is pushed.
        models: What each folder in `draft` holds.
        license: The license, as the Hub writes it.
        title: The heading.
        evaluation: A run that the models played; None for no results.
    """
    has_adapter = any(model["adapter"] for model in models)
    tags = ["comap", "language-agents"]
    if has_adapter:
        tags.append("lora")

    # A base model that is a folder of this machine has no name that the Hub knows.
    bases = sorted({model["base"] for model in models if REPOSITORY.fullmatch(model["base"])})
    front: dict[str, Any] = {
        "license": license,
        "library_name": "peft" if has_adapter else "transformers",
        "tags": tags,
        "base_model": bases or None,
    }

    rows = []
    for model in models:
        folder = model["folder"].relative_to(draft)
        rows.append((shown(folder), shown(model["kind"]), f"{model['parameters']:,}"))
    parts = [
        "Models for language agents, trained with comap. Weights are safe tensors; there is no code "
        "here, and none is needed.",
        "## What is here\n\n" + table(("folder", "kind", "parameters"), rows),
    ]

    settings = _settings_of(source)
    if settings:
        setting_rows = [(name, shown(value)) for name, value in settings.items()]
        parts.append("## Settings\n\n" + table(("", ""), setting_rows))
    parts.append(origin(source))

    if evaluation is not None:
        file = Path(evaluation)
        if file.is_dir():
            file = file / TRAJECTORIES
        results = Results()
        for episode in recorded(file):
            results.add(episode)
        parts += results.parts()
        front |= {"eval_results": results.evaluated(), "model_name": shown(title).strip("`")}

    parts.append(
        "## Loading\n\n`comap hub load model OWNER/NAME --out DIR`; then `comap run --model DIR`, or "
        "for an adapter `--model BASE --adapter agent=DIR`."
    )
    return _card("Model", title, parts, front)
