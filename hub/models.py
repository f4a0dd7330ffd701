"""Adapters and small models on the Hub: what trainings leave, with a card."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..agents.run import TRAJECTORIES
from ..agents.run_summary import recorded
from ..envs.storage import write_json
from ..errors import OptionError
from ..lm.model_sums import SUMS, check_model, write_model_sums
from .cards import card, shown, table
from .episodes_card import About
from .manifest import MOST_BYTES, Loaded, Pushed, checked_licence, fetched, push_folder
from .names import allowed, check_content, parameters_in, without_places
from .places import MANIFEST
from .told import Origin

__all__ = ["load_model", "push_model"]

_OURS = ("README.md", "hub.json", MANIFEST)
_ON_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def push_model(
    source: str | Path,
    target: str | Path,
    *,
    licence: str,
    title: str | None = None,
    evaluation: str | Path | None = None,
    private: bool = False,
) -> Pushed:
    """Push an adapter, a small model, or all models of a training, with a card.

    Args:
        source: A folder with safe tensors: peft's, transformers', or that of a training.
        target: ``OWNER/NAME`` on the Hub, or ``local:DIR``.
        licence: Under which licence others may use it; that of the base model may bind you.
        title: The card's heading; None for the source's name.
        evaluation: A run that the model played, for the card's results.
        private: Whether a new repository is to be private.

    Returns:
        What was pushed, and which files of the folder stayed behind: pickles among them.

    Raises:
        CoMapError: Something is not right; the message says what.

    Example:
        >>> push_model("nowhere", "local:there", licence="mit")
        Traceback (most recent call last):
        comap.errors.OptionError: expected a folder with a model at nowhere, found none
    """
    given = Path(source)
    checked_licence(licence)
    if not given.is_dir():
        raise OptionError(f"expected a folder with a model at {given}, found none")
    trained = (given / "run.json").is_file() and (given / "models").is_dir()
    folder = given / "models" if trained else given

    def fill(draft: Path) -> tuple[str, ...]:
        skipped = _copy(folder, draft)
        parts = list(_parts(draft))
        if not any(part["weights"] for part in parts):
            raise OptionError(
                f"expected weights as safe tensors in {folder}, found none; pickled weights are not "
                "pushed: save the model again (save_pretrained)"
            )
        told = _told(parts, Origin.of(given), evaluation)
        text = card(_front(licence, parts), title or given.resolve().name, told)
        (draft / "README.md").write_text(text, "utf-8")
        return skipped

    return push_folder(target, "model", "model", fill, private=private)


def load_model(
    source: str | Path,
    out: str | Path,
    *,
    revision: str | None = None,
    most_bytes: int = MOST_BYTES,
) -> Loaded:
    """Load models that were pushed into a folder as it was; ``hub.json`` says where it came from.

    Args:
        source: ``OWNER/NAME`` on the Hub, or ``local:DIR``.
        out: The folder; it may not be there yet, or be empty.
        revision: A commit, branch or tag; None for the newest.
        most_bytes: The most to load.

    Raises:
        CoMapError: Something is not right; then `out` is as it was.

    Example:
        >>> load_model("local:nowhere", "there")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected something that was pushed in nowhere, found no \
comap.json; give the folder that was pushed to
    """
    with fetched(source, "model", "model", out, revision, most_bytes) as opened:
        files, draft, place, listing = opened
        (files / MANIFEST).unlink()
        size = sum(path.stat().st_size for path in files.rglob("*") if path.is_file())
        for path in sorted(files.iterdir()):
            path.rename(draft / path.name)
        files.rmdir()
        write_json(draft / "hub.json", {"from": str(place), "revision": listing.revision})
    return Loaded(Path(out), str(place), listing.revision, size)


def _copy(folder: Path, draft: Path) -> tuple[str, ...]:
    """Copy what may be pushed, and return the names of the rest; checksums are written anew."""
    skipped, known = [], []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not allowed(name) or name in _OURS:
            skipped.append(name)
            continue
        if path.name == SUMS:
            check_model(path.parent)
            known.append(path.parent.relative_to(folder))
            continue
        target = draft / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        check_content(target, name)
        if path.suffix == ".json":
            _rewrite(target)
    for place in known:
        write_model_sums(draft / place)
    return tuple(skipped)


def _rewrite(path: Path) -> None:
    """Take places of this machine out of a file, if there are some."""
    before = json.loads(path.read_bytes())
    after = without_places(before)
    if after != before:
        path.write_text(json.dumps(after, indent=2, sort_keys=True) + "\n", "utf-8")


def _parts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what is in each folder of models."""
    for place in sorted({path.parent for path in folder.rglob("*") if path.is_file()}):
        weights = sorted(place.glob("*.safetensors"))
        adapter, config = (_config(place / name) for name in ("adapter_config.json", "config.json"))
        yield {
            "folder": place.relative_to(folder).as_posix(),
            "weights": sum(parameters_in(path) for path in weights),
            "kind": _kind(adapter, config),
            "adapter": bool(adapter),
            "base": str(adapter.get("base_model_name_or_path") or ""),
        }


def _config(path: Path) -> Mapping[str, Any]:
    found = json.loads(path.read_bytes()) if path.is_file() else {}
    return found if isinstance(found, Mapping) else {}


def _kind(adapter: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    if adapter:
        base = adapter.get("base_model_name_or_path") or "a base that is not named"
        return f"{adapter.get('peft_type', 'adapter')}, r={adapter.get('r')}, on {base}"
    return str(config.get("model_type") or "weights")


def _front(licence: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the front matter; a base model is named where it is the Hub's."""
    bases = sorted({part["base"] for part in parts if _ON_HUB.fullmatch(part["base"])})
    adapter = any(part["adapter"] for part in parts)
    front: dict[str, Any] = {
        "license": licence,
        "library_name": "peft" if adapter else "transformers",
        "tags": ["comap", "language-agents", *(["lora"] if adapter else [])],
    }
    return front | ({"base_model": bases} if bases else {})


def _told(
    parts: list[dict[str, Any]], origin: Origin, evaluation: str | Path | None
) -> Iterator[str]:
    """Yield the parts of the card."""
    yield (
        "Models for language agents, trained with comap. Weights are safe tensors; there is no code "
        "here, and none is needed."
    )
    rows = [
        (shown(part["folder"]), shown(part["kind"]), f"{part['weights']:,}")
        for part in parts
        if part["weights"]
    ]
    yield "## What is here\n\n" + table(("folder", "kind", "parameters"), rows)
    config = origin.run.get("config")
    if isinstance(config, Mapping):
        chosen = ("method", "env", "split", "seed", "rounds", "algorithm", "preset")
        told = [(name, shown(config[name])) for name in chosen if config.get(name) is not None]
        if told:
            yield "## Settings\n\n" + table(("", ""), told)
    yield origin.part()
    if evaluation is not None:
        given = Path(evaluation)
        about = About()
        for episode in recorded(given / TRAJECTORIES if given.is_dir() else given):
            about.add(episode)
        _, *results = about.parts(Origin.of(given if given.is_dir() else given.parent))
        yield "\n\n".join(results[:2])
    yield (
        "## Loading\n\n`comap hub load model OWNER/NAME --out DIR`; then `comap run --model DIR`, or "
        "for an adapter `--model BASE --adapter agent=DIR`."
    )
