"""Where things are pushed to and loaded from: a repository on the Hub, or a folder in its place."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ..envs.storage import replacing
from ..errors import CoMapError, DataNotFound, HubError, MissingExtra, OptionError

__all__ = ["MANIFEST", "Folder", "Kind", "Listing", "Place", "Repository", "place_of"]

Kind = Literal["dataset", "model"]
"""The Hub's kinds of repositories that are used here."""

MANIFEST = "comap.json"
"""The file that says which files are in a repository."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,119}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in a place at one moment.

    Attributes:
        revision: The moment: a commit of the Hub.
        sizes: The size of each file by name; None where the place does not tell.
    """

    revision: str
    sizes: Mapping[str, int | None]


class Place(Protocol):
    """Somewhere to push to and to load from."""

    def listing(self, revision: str | None) -> Listing:
        """Return what is there, now or at a revision."""
        ...

    def fetch(self, name: str, listing: Listing, target: Path) -> None:
        """Bring a file of a listing to a path."""
        ...

    def put(self, folder: Path, message: str) -> str:
        """Replace what is there by a folder's files; return the new revision."""
        ...


def place_of(target: str | Path, kind: Kind, *, private: bool = False) -> Place:
    """Return the place that a text names.

    Args:
        target: ``OWNER/NAME`` on the Hub; ``local:DIR``, or a path that begins with ``/``, ``.`` or
            ``~``, for a folder.
        kind: What it is on the Hub.
        private: Whether a new repository is to be private.

    Raises:
        OptionError: It names neither.

    Example:
        >>> place_of("local:runs/pushed", "model").path.as_posix()
        'runs/pushed'
        >>> place_of("me/agent", "model").name
        'me/agent'
    """
    if isinstance(target, Path):
        return Folder(target)
    local = target.removeprefix("local:")
    if local != target or target.startswith(("/", ".", "~")):
        if not local:
            raise OptionError("expected a folder after local:, found nothing")
        return Folder(Path(local).expanduser())
    if not _REPOSITORY.fullmatch(target):
        raise OptionError(
            f"expected OWNER/NAME on the Hub, or local:DIR for a folder, found {target!r:.120}"
        )
    return Repository(target, kind, private)


class Folder:
    """A folder that holds what a repository would.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path):
        self.path = path

    def __str__(self) -> str:
        return f"local:{self.path}"

    def listing(self, revision: str | None) -> Listing:
        """Return what is there.

        Raises:
            DataNotFound: There is no such folder, or it holds another revision.
        """
        if not (self.path / MANIFEST).is_file():
            raise DataNotFound(
                f"expected something that was pushed in {self.path}, found no {MANIFEST}; give the "
                "folder that was pushed to"
            )
        now = hashlib.sha256((self.path / MANIFEST).read_bytes()).hexdigest()[:40]
        if revision is not None and revision != now:
            raise DataNotFound(
                f"expected revision {revision!r:.60} in {self.path}, found {now}; a folder keeps only "
                "its last one"
            )
        files = (path for path in self.path.rglob("*") if path.is_file() and not path.is_symlink())
        sizes = {path.relative_to(self.path).as_posix(): path.stat().st_size for path in files}
        return Listing(now, sizes)

    def fetch(self, name: str, listing: Listing, target: Path) -> None:
        """Copy a file."""
        shutil.copyfile(self.path / name, target)

    def put(self, folder: Path, message: str) -> str:
        """Replace the folder as a whole.

        Raises:
            OptionError: It holds something that was not pushed.
        """
        if self.path.exists():
            known = self.path.is_dir() and (
                (self.path / MANIFEST).is_file() or not any(self.path.iterdir())
            )
            if not known:
                raise OptionError(
                    f"expected an empty folder, or one that was pushed to, at {self.path}, found "
                    "something else; give another place"
                )
        with replacing(self.path) as draft:
            shutil.copytree(folder, draft, dirs_exist_ok=True)
        return self.listing(None).revision


class Repository:
    """A repository on the Hub.

    The token is that of the environment variable ``HF_TOKEN``, or else of ``hf auth login``; it is in
    no message.

    Args:
        name: ``OWNER/NAME``.
        kind: What it is there.
        private: Whether it is made private, where it is new.
    """

    def __init__(self, name: str, kind: Kind, private: bool = False):
        self.name, self._kind, self._private = name, kind, private

    def __str__(self) -> str:
        return f"datasets/{self.name}" if self._kind == "dataset" else self.name

    def listing(self, revision: str | None) -> Listing:
        """Return what is there; a branch or a tag is resolved to its commit once.

        Raises:
            HubError: The Hub does not tell.
            OptionError: A revision cannot have this name.
        """
        if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
            raise OptionError(f"expected a commit, branch or tag, found {revision!r:.120}")
        api = _api()
        with self._asking("read"):
            told = api.repo_info(
                self.name, repo_type=self._kind, revision=revision, files_metadata=True
            )
        sizes = {one.rfilename: one.size for one in told.siblings or ()}
        return Listing(str(told.sha), sizes)

    def fetch(self, name: str, listing: Listing, target: Path) -> None:
        """Download a file, of exactly the listing's commit.

        Raises:
            HubError: The Hub does not give it.
        """
        api, aside = _api(), target.with_name(target.name + ".from-hub")
        with self._asking("read"):
            found = api.hf_hub_download(
                self.name,
                name,
                repo_type=self._kind,
                revision=listing.revision,
                local_dir=aside,
            )
            Path(found).replace(target)
            shutil.rmtree(aside)

    def put(self, folder: Path, message: str) -> str:
        """Replace what is there by one commit; the repository is made where it is missing.

        Raises:
            HubError: The Hub does not take it.
        """
        api = _api()
        with self._asking("write"):
            api.create_repo(
                self.name, repo_type=self._kind, private=self._private or None, exist_ok=True
            )
            done = api.upload_folder(
                repo_id=self.name,
                repo_type=self._kind,
                folder_path=folder,
                commit_message=message,
                delete_patterns="*",
            )
        return str(done.oid)

    @contextmanager
    def _asking(self, verb: str) -> Iterator[None]:
        """Tell of the Hub's refusals in our words; the libraries below raise many kinds."""
        try:
            yield
        except CoMapError:
            raise
        except Exception as error:
            told = _without_secrets(" ".join(str(error).split()), _secrets())
            advice = (
                "check the name and the network, and that HF_TOKEN holds a token that may "
                f"{verb} there"
            )
            raise HubError(
                f"cannot {verb} {self} on the Hub ({type(error).__name__}: {told:.300}); {advice}"
            ) from None  # what is beneath may hold the request, and that the token


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingExtra.of("hub", "the Hugging Face Hub") from error
    return HfApi()


def _secrets() -> list[str]:
    """Return the tokens that this process may have sent."""
    from huggingface_hub import get_token

    given = [os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN"), get_token()]
    return [token.strip() for token in given if token and token.strip()]


def _without_secrets(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return re.sub(r"hf_[A-Za-z0-9]{8,}", "***", text)
