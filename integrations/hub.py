"""The Hugging Face Hub: trajectories and models go there, checked, with cards.

What goes to the Hub can go to a folder instead (``local:DIR``), in the same layout. Weights are safe
tensors, all else is JSON, Parquet or plain text; nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

from ..agents.config import AgentConfig
from ..agents.convert import conversation_of
from ..agents.run import DIGESTS, RUN, SUMMARY, TIMINGS, TRAJECTORIES, check_count
from ..envs.registry import class_of
from ..envs.storage import replacing
from ..errors import DataCorrupt, DataNotFound, HubError, OptionError
from ..jsonl import digests_of, read, read_json, write_json
from ..lm.create import parameters_in
from ..redaction import check_public, without_secrets
from ..trajectory import Trajectory
from .cards import REPOSITORY, Results, data_card, library, mapping, model_card

MOST_BYTES = 64 * 2**30
"""The most that is loaded, unless one says otherwise."""

_UNREADABLE = (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)
_FORMAT = "comap hub 2"
_MARK = "comap.json"
_KEPT = (RUN, SUMMARY, TIMINGS)
_SUFFIXES = (".json", ".jsonl", ".safetensors", ".parquet", ".txt", ".md", ".jinja")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}){0,3}")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,59}")
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,119}", re.ASCII)
_PATHS = ("base_model_name_or_path", "_name_or_path", "name_or_path")
_OF_USERS = ("env_options",)  # of an environment that anybody may have written
_GROUP = 256  # episodes in a row group
_PART = 2**28  # bytes of records in a file

_Kind = Literal["dataset", "model"]


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was pushed where: files and bytes, the commit (empty for a folder), and what stayed behind."""

    location: str
    revision: str
    files: int
    size: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The folder that holds what was loaded, where it came from, its commit and its bytes."""

    path: Path
    location: str
    revision: str
    size: int


def push_trajectories(
    source: str | Path,
    target: str | Path,
    *,
    license: str,
    title: str | None = None,
    private: bool = False,
) -> Pushed:
    """Push a run's trajectories as a data set, with a card.

    Each episode is a row: ``env_id``, ``task``, ``split``, ``goal``, ``agent``, ``success``, ``score``
    and others to look at, ``actions``, ``observations``, ``rewards`` and their sum ``reward`` to learn
    from, and ``record``, the whole line of JSON. TRL's ``SFTTrainer`` takes ``messages``, which are also
    there as ``prompt`` and ``completion``. ``datasets.load_dataset("OWNER/NAME", split="train")`` reads
    it; episodes of an evaluation's split are in ``test``.

    Args:
        source: A run's folder, or a file of trajectories.
        target: ``OWNER/NAME`` on the Hub, or ``local:DIR``.
        license: Under which license others may use it, as the Hub writes it: it is yours to choose.
        title: The card's heading; None for the source's name.
        private: Whether a new repository is to be private.

    Example:
        >>> import tempfile
        >>> from comap.facts import State
        >>> from comap.trajectory import write_trajectories
        >>> with tempfile.TemporaryDirectory() as home:
        ...     file, target = Path(home, "trajectories.jsonl"), f"local:{home}/pushed"
        ...     episode = Trajectory("id", "task", "dev", "goal", "agent", "Hello.", State())
        ...     write_trajectories(file, [episode])
        ...     pushed = push_trajectories(file, target, license="mit")
        ...     loaded = load_trajectories(target, Path(home, "back"))
        ...     (loaded.path / "trajectories.jsonl").read_bytes() == file.read_bytes()
        True
    """
    path = Path(source)
    file = path / TRAJECTORIES if path.is_dir() else path

    def fill(folder: Path) -> tuple[str, ...]:
        results = Results()
        splits = _write_rows(folder / "data", file, results)
        if path.is_dir():
            _keep_run(path, folder / "run")
        name = title or path.resolve().name
        text = data_card(file.parent, name, license, splits, results)
        (folder / "README.md").write_text(text, "utf-8")
        return ()

    return _push(target, "dataset", license, fill, private)


def load_trajectories(
    source: str | Path,
    out: str | Path,
    *,
    revision: str | None = None,
    most_bytes: int = MOST_BYTES,
) -> Loaded:
    """Load trajectories that were pushed into a folder that is like a run's.

    ``trajectories.jsonl`` is there byte for byte as it was pushed, and ``hub.json`` says where it came
    from: `comap view` and `comap verify` take the folder as any other.

    Args:
        source: ``OWNER/NAME`` on the Hub, or ``local:DIR``.
        out: The folder; it may not be there yet, or be empty.
        revision: A commit, branch or tag; None for the newest.
        most_bytes: The most to load, before and after unpacking.
    """
    with _fetched(source, "dataset", out, revision, most_bytes) as (files, draft, commit):
        # Records are ASCII, and lines end alike on every system: the file is that which was pushed.
        size = 0
        parquet_files = sorted((files / "data").glob("*.parquet"))
        with (draft / TRAJECTORIES).open("w", encoding="ascii", newline="\n") as file:
            for line in _records(parquet_files, most_bytes):
                size += file.write(line + "\n")

        run_files = [files / "run" / name for name in _KEPT]
        for path in (*run_files, files / "README.md"):
            if path.is_file():
                path.replace(draft / path.name)
    return Loaded(Path(out), str(source), commit, size)


def push_model(
    source: str | Path,
    target: str | Path,
    *,
    license: str,
    title: str | None = None,
    evaluation: str | Path | None = None,
    private: bool = False,
) -> Pushed:
    """Push an adapter, a small model, or all models of a training, with a card; pickles stay behind.

    Args:
        source: A folder with safe tensors: peft's, transformers', or that of a training.
        target: As for `push_trajectories`, like the others.
        license: Under which license others may use it; that of the base model may bind you.
        title: The card's heading.
        evaluation: A run that the model played, for the card's results.
        private: Whether a new repository is to be private.

    Example:
        >>> push_model("nowhere", "local:there", license="mit")
        Traceback (most recent call last):
        comap.errors.OptionError: expected a folder with a model at nowhere, found none; \
give one that save_pretrained or a training wrote
    """
    path = Path(source)
    if not path.is_dir():
        raise OptionError(
            f"expected a folder with a model at {path}, found none; give one that save_pretrained "
            "or a training wrote"
        )
    is_training = (path / RUN).is_file() and (path / "models").is_dir()
    folder = path / "models" if is_training else path

    def fill(draft: Path) -> tuple[str, ...]:
        skipped = _copy_model(folder, draft)
        model_folders = sorted({file.parent for file in draft.rglob("*.*")})
        models = [_model_in(model_folder) for model_folder in model_folders]
        models = [model for model in models if model["parameters"]]
        if not models:
            raise OptionError(
                f"expected weights as safe tensors in {folder}, found none; pickled weights are not "
                "pushed: save the model again (save_pretrained)"
            )
        name = title or path.resolve().name
        text = model_card(path, draft, models, license, name, evaluation)
        (draft / "README.md").write_text(text, "utf-8")
        return skipped

    return _push(target, "model", license, fill, private)


def load_model(
    source: str | Path,
    out: str | Path,
    *,
    revision: str | None = None,
    most_bytes: int = MOST_BYTES,
) -> Loaded:
    """Load models into a folder as they were pushed, as `load_trajectories` does."""
    with _fetched(source, "model", out, revision, most_bytes) as (files, draft, commit):
        (files / _MARK).unlink()
        size = sum(path.stat().st_size for path in files.rglob("*") if path.is_file())
        for path in sorted(files.iterdir()):
            path.rename(draft / path.name)
    return Loaded(Path(out), str(source), commit, size)


def _folder_of(target: str | Path) -> Path | None:
    """Return the folder that a target names; None where it is a repository on the Hub."""
    if isinstance(target, Path):
        return target
    local = target.removeprefix("local:")
    if local != target or target.startswith(("/", ".", "~")):
        if not local:
            raise OptionError("expected a folder after local:, found nothing")
        return Path(local).expanduser()
    if not REPOSITORY.fullmatch(target):
        raise OptionError(
            f"expected OWNER/NAME on the Hub, or local:DIR for a folder, found {target!r:.120}"
        )
    return None


def _push(
    target: str | Path,
    kind: _Kind,
    license: str,
    fill: Callable[[Path], tuple[str, ...]],
    private: bool,
) -> Pushed:
    """Let `fill` write a folder, check all of it, and push it; nothing goes out before it is checked."""
    if not isinstance(license, str) or not _LICENSE.fullmatch(license):
        raise OptionError(
            "expected a license as the Hub writes it (apache-2.0, cc-by-4.0, mit, other), found "
            f"{license!r:.80}"
        )
    local = _folder_of(target)
    with tempfile.TemporaryDirectory(prefix="comap-hub-") as home:
        folder = Path(home, "pushed")
        folder.mkdir()
        skipped = fill(folder)
        write_json(folder / _MARK, {"format": _FORMAT, "kind": kind})

        # Records within Parquet were checked as they were written; weights hold no text.
        sizes = []
        for path in filter(Path.is_file, folder.rglob("*")):
            sizes.append(path.stat().st_size)
            if path.suffix not in (".parquet", ".safetensors"):
                check_public(path.read_text("utf-8", errors="replace"), path.name)

        revision = ""
        if local is None:
            revision = _upload(str(target), kind, folder, private)
        else:
            _copy_to(local, folder)
    return Pushed(str(target), revision, len(sizes), sum(sizes), skipped)


def _copy_to(target: Path, folder: Path) -> None:
    """Put a folder in the place of an empty one, or of one that was pushed before."""
    is_empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty and not (target / _MARK).is_file():
        raise OptionError(
            f"expected an empty folder, or one that was pushed to, at {target}, found "
            "something else; give another place"
        )
    with replacing(target.absolute()) as draft:
        shutil.copytree(folder, draft, dirs_exist_ok=True)


@contextmanager
def _fetched(
    source: str | Path, kind: _Kind, out: str | Path, revision: str | None, most_bytes: int
) -> Iterator[tuple[Path, Path, str]]:
    """Give a repository's files, checked, and a new folder that takes the place of `out` at the end."""
    target = Path(out)
    local = _folder_of(source)
    is_empty_folder = target.is_dir() and not any(target.iterdir())
    if target.is_symlink() or (target.exists() and not is_empty_folder):
        raise OptionError(f"expected no folder, or an empty one, at {target}; give another one")

    with tempfile.TemporaryDirectory(prefix="comap-hub-") as home:
        files = Path(home, "files")
        commit = ""
        if local is None:
            commit = _download(str(source), kind, revision, files, most_bytes)
        elif not (local / _MARK).is_file() or revision is not None:
            raise DataNotFound(
                f"expected something that was pushed in {local}, found no {_MARK}; give the folder "
                "that was pushed to, without a revision"
            )
        else:
            size = sum(path.stat().st_size for path in local.rglob("*") if path.is_file())
            _check_size(size, most_bytes)
            # Links stay links, and are refused below: one could lead anywhere on this machine.
            shutil.copytree(local, files, symlinks=True)

        mark = files / _MARK
        content = json.loads(_checked(mark, _MARK).read_bytes()) if mark.is_file() else None
        if content != {"format": _FORMAT, "kind": kind}:
            raise DataCorrupt(
                f"expected {kind} pushed by comap ({_FORMAT}) at {source}, found {content!r:.120}; a plain "
                "model of the Hub is given as --model, without loading it first"
            )
        for path in sorted(files.rglob("*")):
            if path.is_file() or path.is_symlink():
                _checked(path, path.relative_to(files).as_posix())

        with replacing(target.absolute()) as draft:
            yield files, draft, commit
            write_json(draft / "hub.json", {"from": str(source), "revision": commit})


def _upload(name: str, kind: _Kind, folder: Path, private: bool) -> str:
    """Replace what a repository has by one commit; it is made where it is missing."""
    api = library("huggingface_hub").HfApi()
    with _asking("write", name):
        api.create_repo(name, repo_type=kind, private=private or None, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name,
            repo_type=kind,
            folder_path=folder,
            commit_message=f"{kind.capitalize()} pushed by comap",
            delete_patterns="*",
        )
    return str(commit.oid)


def _download(name: str, kind: _Kind, revision: str | None, files: Path, most_bytes: int) -> str:
    """Load a repository's files into a folder, if they are not too large; return the commit."""
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise OptionError(f"expected a commit, branch or tag, found {revision!r:.120}")
    api = library("huggingface_hub").HfApi()
    with _asking("read", name):
        info = api.repo_info(name, repo_type=kind, revision=revision, files_metadata=True)
        size = sum(file.size or 0 for file in info.siblings or ())
    _check_size(size, most_bytes)

    # The commit that was looked at, not the branch, which may have moved meanwhile.
    with _asking("read", name):
        api.snapshot_download(
            name,
            repo_type=kind,
            revision=info.sha,
            local_dir=files,
            allow_patterns=[f"*{suffix}" for suffix in _SUFFIXES],
        )
    shutil.rmtree(files / ".cache", ignore_errors=True)
    return str(info.sha)


@contextmanager
def _asking(verb: str, name: str) -> Iterator[None]:
    """Raise the Hub's refusals as `HubError`, without tokens."""
    try:
        yield
    except Exception as error:  # the libraries below raise many kinds
        from huggingface_hub import get_token

        text = " ".join(str(error).split())
        for secret in filter(None, (os.environ.get("HF_TOKEN"), get_token())):
            text = text.replace(secret.strip(), "***")
        text = re.sub(r"hf_[A-Za-z0-9]{8,}", "***", text)
        raise HubError(
            f"cannot {verb} {name} on the Hub ({type(error).__name__}: {text:.300}); check the name "
            f"and the network, and that HF_TOKEN holds a token that may {verb} there"
        ) from None  # what is beneath may hold the request, and that the token


def _check_size(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise OptionError(
            f"expected at most {most_bytes:,} bytes, found {size:,}; allow more, if you trust them "
            "(--most-bytes)"
        )


def _allowed(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and Path(name).suffix in _SUFFIXES


def _checked(path: Path, name: str) -> Path:
    """Return a file's path, after refusing what comap does not write, or what is not what it is named."""
    suffix = path.suffix
    try:
        if path.is_symlink() or not _allowed(name):
            raise ValueError("a link, or a name that comap does not write")
        if suffix == ".json":
            read_json(path)
        elif suffix == ".safetensors":
            parameters_in(path)
        elif suffix == ".parquet":
            with path.open("rb") as file:
                if file.read(4) != b"PAR1":
                    raise ValueError("it does not begin as Parquet does")
        else:
            path.read_text("utf-8")
    except _UNREADABLE as error:
        raise DataCorrupt(
            f"expected {suffix[1:]} in {name}, found something else ({error!s:.120}); push it again, "
            "or ask those who did"
        ) from error
    return path


def _without_paths(value: Any) -> Any:
    """Return JSON data in which names of models have no path of this machine."""
    if isinstance(value, list):
        return [_without_paths(part) for part in value]
    if not isinstance(value, dict):
        return value

    # A folder's last part still says which model it was; names of the Hub stay as they are.
    public = {}
    for key, part in value.items():
        is_name = key in _PATHS and isinstance(part, str)
        if is_name and re.match(r"[\\/~.]|[A-Za-z]:[\\/]", part):
            public[key] = re.split(r"[\\/]", part.rstrip("\\/"))[-1]
        else:
            public[key] = _without_paths(part)
    return public


def _keep_run(source: Path, folder: Path) -> None:
    """Copy what describes a run, without paths of this machine."""
    folder.mkdir()
    for name in _KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
            _checked(folder / name, name)
            if name != TIMINGS:
                public = without_secrets(_without_paths(read_json(folder / name)), free=_OF_USERS)
                write_json(folder / name, public)

    # `comap verify` compares digests: the record may have changed by what was left out of it.
    file = folder / SUMMARY
    summary = read_json(file) if file.is_file() else {}
    if DIGESTS in summary and (folder / RUN).is_file():
        digests = mapping(summary[DIGESTS])
        summary[DIGESTS] = {**digests, **digests_of(folder, [RUN])}
        write_json(file, summary)


def _write_rows(folder: Path, file: Path, results: Results) -> dict[str, str]:
    """Write all episodes as Parquet, in files of some hundred megabytes; return the files of each split."""
    pa = library("pyarrow")
    pq = library("pyarrow.parquet")
    folder.mkdir()
    schema = _schema(pa)
    splits: dict[str, str] = {}
    part = 0

    # Files are numbered in the order of the episodes, in which they are loaded again. No more than a
    # group of them is in memory at a time.
    all_episodes = read(file, Trajectory.from_json, expected="a trajectory")
    for split, episodes in groupby(all_episodes, _split_of):
        splits[split] = f"data/*-{split}.parquet"
        while group := list(islice(episodes, _GROUP)):
            name = f"part-{part:05d}-{split}.parquet"
            size = 0
            with pq.ParquetWriter(folder / name, schema, compression="zstd") as writer:
                while group:
                    rows = []
                    for episode in group:
                        results.add(episode)
                        settings = without_secrets(episode.settings)
                        rows.append(_row(replace(episode, settings=settings)))
                        check_public(rows[-1]["record"], f"the episode of {episode.task!r:.80}")
                    writer.write_table(pa.Table.from_pylist(rows, schema))
                    size += sum(len(row["record"]) for row in rows)
                    group = list(islice(episodes, _GROUP)) if size < _PART else []
            part += 1

    if not results.count:
        raise DataNotFound(f"expected episodes in {file}, found none; nothing was pushed")
    check_count(file, results.count)
    return splits


def _split_of(episode: Trajectory) -> str:
    evaluated = getattr(class_of(episode.env_id), "test_splits", ())
    return "test" if episode.split in ("dev", "test", *evaluated) else "train"


def _row(episode: Trajectory) -> dict[str, Any]:
    """Return an episode as a row of the data set, whose columns `_schema` lists."""

    # Parquet takes no halves of characters, which environments may write; `record` has them.
    def clean(text: object) -> str:
        return str(text or "").encode("utf-8", "replace").decode("utf-8")

    messages = [{"role": "user", "content": clean(episode.observation)}]
    if episode.steps:
        messages = conversation_of(episode, AgentConfig(examples=0))

    # The prompt ends before the first reply.
    roles = [message["role"] for message in messages]
    first_reply = roles.index("assistant") if "assistant" in roles else len(roles)
    names = ("env_id", "task", "split", "goal", "agent", "world_model", "error", "observation")
    return {
        **{name: clean(getattr(episode, name)) for name in names},
        "model": clean(episode.settings.get("model")),
        "trial": episode.trial,
        "success": episode.success if episode.has_outcome else None,
        "score": float(episode.score) if episode.has_outcome else None,
        "length": len(episode.steps),
        "actions": [clean(step.action) for step in episode.steps],
        "observations": [clean(step.observation) for step in episode.steps],
        "rewards": [float(step.reward) for step in episode.steps],
        "reward": float(sum(step.reward for step in episode.steps)),
        "messages": messages,
        "prompt": messages[:first_reply],
        "completion": messages[first_reply:],
        "record": json.dumps(episode.to_json(), ensure_ascii=True),
    }


def _schema(pa: Any) -> Any:
    """Return the columns and their types: Parquet would guess others where a column is empty."""
    text = pa.string()
    messages = pa.list_(pa.struct([("role", text), ("content", text)]))
    return pa.schema(
        [
            ("env_id", text),
            ("task", text),
            ("split", text),
            ("goal", text),
            ("agent", text),
            ("model", text),
            ("world_model", text),
            ("error", text),
            ("observation", text),
            ("trial", pa.int64()),
            ("success", pa.bool_()),
            ("score", pa.float64()),
            ("length", pa.int32()),
            ("actions", pa.list_(text)),
            ("observations", pa.list_(text)),
            ("rewards", pa.list_(pa.float64())),
            ("reward", pa.float64()),
            ("messages", messages),
            ("prompt", messages),
            ("completion", messages),
            ("record", text),
        ]
    )


def _records(files: list[Path], most_bytes: int) -> Iterator[str]:
    """Yield the lines in files of Parquet; each is a trajectory."""
    pa = library("pyarrow")
    pq = library("pyarrow.parquet")
    size = 0
    for path in files:
        try:
            with pq.ParquetFile(path) as parquet:
                # A small file may unpack to more than memory holds: a group is unpacked at once.
                numbers = range(parquet.num_row_groups)
                sizes = [parquet.metadata.row_group(n).total_byte_size for n in numbers]
                _check_size(max(sizes, default=0), most_bytes)

                for batch in parquet.iter_batches(batch_size=_GROUP, columns=["record"]):
                    for line in batch.column(0).to_pylist():
                        size += len(line)
                        _check_size(size, most_bytes)
                        if not line.isascii() or "\n" in line or "\r" in line:
                            raise TypeError("more than a line of ASCII")
                        Trajectory.from_json(json.loads(line))
                        yield line
        except OptionError:
            raise
        except (pa.ArrowException, OSError, *_UNREADABLE) as error:
            raise DataCorrupt(
                f"expected episodes in data/{path.name}, found something else ({error!s:.200})"
            ) from error


def _copy_model(folder: Path, draft: Path) -> tuple[str, ...]:
    """Copy what may be pushed, without paths of this machine; return the names of what stays behind."""
    skipped = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not _allowed(name) or name in ("README.md", "hub.json", _MARK):
            skipped.append(name)
            continue

        target = draft / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        _checked(target, name)

        # A file without paths stays as it is, byte for byte.
        if path.suffix == ".json":
            content = json.loads(path.read_bytes())
            public = _without_paths(content)
            if public != content:
                write_json(target, public, sort_keys=True)
    return tuple(skipped)


def _model_in(folder: Path) -> dict[str, Any]:
    """Return what a folder holds: an adapter or a model, its size, and the base of an adapter."""
    adapter = _json_in(folder / "adapter_config.json")
    config = _json_in(folder / "config.json")
    base = str(adapter.get("base_model_name_or_path") or "")

    kind = str(config.get("model_type") or "weights")
    if adapter:
        peft = adapter.get("peft_type", "adapter")
        kind = f"{peft}, r={adapter.get('r')}, on {base or 'no name'}"
    return {
        "folder": folder,
        "parameters": sum(parameters_in(path) for path in sorted(folder.glob("*.safetensors"))),
        "kind": kind,
        "adapter": bool(adapter),
        "base": base,
    }


def _json_in(file: Path) -> Mapping[str, Any]:
    return mapping(read_json(file)) if file.is_file() else {}
