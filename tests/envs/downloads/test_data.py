"""`get`: a data set is there whole, as the catalogue says, or not at all; `verify` says what is wrong."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.envs.data import MANIFEST, DataSet, get, is_installed, unpack, verify
from comap.envs.storage import Progress, data_path
from comap.errors import DataCorrupt, DataNotFound, DownloadError, OptionError
from kits.archives import LIMITS, zip_of


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }


def leftovers(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir() if path.name != ".toy.lock")


def test_get_downloads_checks_unpacks_and_reports_progress(site: Any, toy: DataSet, home: Path):
    seen: list[Progress] = []
    path = get(toy, progress=seen.append)
    assert path == home / "toy" == data_path("toy")
    assert tree(path) == site.files and leftovers(home) == ["toy"]
    assert verify(toy).ok and is_installed(toy)
    assert list(dict.fromkeys(p.stage for p in seen)) == ["downloading", "unpacking", "checking"]
    done = [p for p in seen if p.stage == "downloading"]
    assert done[0].done == 0 and done[-1].done == done[-1].total == len(site.body)
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["archive"]["sha256"] == hashlib.sha256(site.body).hexdigest()
    get(toy)
    assert len(site.requests) == 1, "what is there is not downloaded again"
    get(toy, force=True)
    assert len(site.requests) == 2


def test_data_put_there_by_hand_are_used_if_they_are_right(site: Any, toy: DataSet, home: Path):
    with zipfile.ZipFile(io.BytesIO(site.body)) as archive:
        archive.extractall(home / "toy")
    assert get(toy) == home / "toy"
    (home / "toy/root/dev/task-0/trial/game.txt").write_text("mine")
    with pytest.raises(DataCorrupt, match=r"comap did not put there; .* get toy --force"):
        get(toy)
    assert not site.requests
    get(toy, force=True)
    assert tree(home / "toy") == site.files and leftovers(home) == ["toy"]


def test_wrong_bytes_are_removed(site: Any, toy: DataSet, home: Path):
    right = hashlib.sha256(site.body).hexdigest()
    site.body = site.body[:-1] + b"x"
    with pytest.raises(DataCorrupt, match=rf"expected SHA-256 {right} .* found .*data get toy"):
        get(replace(toy, sha256=right))
    assert leftovers(home) == []
    site.body = site.pack(site.files)
    assert get(replace(toy, sha256=hashlib.sha256(site.body).hexdigest())).is_dir()


@pytest.mark.parametrize("no_length", [False, True])
def test_a_download_that_is_too_large_is_stopped(
    site: Any, toy: DataSet, home: Path, no_length: bool
):
    site.fail({"no_length": no_length})
    with pytest.raises(DataCorrupt, match="expected at most 1000 bytes"):
        get(replace(toy, limits=replace(toy.limits, download_bytes=1000)))
    assert leftovers(home) == []


CHILD = """
import os, signal, sys
sys.path[:0] = {path!r}
from comap.envs.data import Limits
from comap.envs.data import *
toy = {toy!r}
def listen(progress):
    if progress.stage == {stage!r} and progress.done >= {done}:
        os.kill(os.getpid(), signal.SIGKILL)
print(get(toy, timeout=5, progress=listen))
"""


def child(toy: DataSet, stage: str = "", done: int = 0) -> subprocess.Popen[str]:
    code = CHILD.format(path=sys.path, toy=toy, stage=stage, done=done)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills need POSIX signals")
@pytest.mark.parametrize(
    ("stage", "done", "requests"),
    [("downloading", 30_000, 2), ("unpacking", 2, 1), ("checking", 2, 1)],
)
def test_a_kill_leaves_nothing_half_done(
    site: Any, toy: DataSet, home: Path, stage: str, done: int, requests: int
):
    if stage == "downloading":
        site.fail({"cut": 65_000})
    process = child(toy, stage, done)
    process.communicate(timeout=20)
    assert process.returncode == -9
    assert not (home / "toy").exists()
    assert tree(get(toy)) == site.files
    assert len(site.requests) == requests and leftovers(home) == ["toy"]


def test_a_kill_between_two_renames_gives_the_old_data_back(site: Any, toy: DataSet, home: Path):
    get(toy)
    (home / ".toy-abcdefgh").mkdir()
    (home / "toy").rename(home / ".toy-abcdefgh/old")
    get(toy)
    assert len(site.requests) == 1
    assert verify(toy).ok and leftovers(home) == ["toy"]


def test_two_processes_download_once(site: Any, toy: DataSet, home: Path):
    both = [child(toy), child(toy)]
    outputs = [process.communicate(timeout=20)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs == [str(home / "toy")] * 2
    assert len(site.requests) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(site: Any, toy: DataSet, home: Path):
    home.mkdir()
    (home / ".toy.part").symlink_to("/dev/full")
    with pytest.raises(DownloadError, match="free some space"):
        get(toy)
    assert len(site.requests) == 1


# Cut connections, changed files and broken servers.


@pytest.mark.parametrize("cuts", [[100_000], [1000, 100_000], [0, 50_000]])
def test_a_cut_download_goes_on_where_it_was_cut(site: Any, toy: DataSet, cuts: list[int]):
    site.fail(*[{"cut": cut} for cut in cuts])
    assert tree(get(toy)) == site.files
    offsets, expected = 0, [""]
    for cut in cuts:
        offsets += cut
        expected.append(f"bytes={offsets}-" if offsets else "")
    assert site.requests == expected


def test_half_a_file_of_unknown_length_is_not_taken_for_a_whole_one(
    site: Any, toy: DataSet, home: Path
):
    site.fail({"cut": 1000, "no_length": True})
    with pytest.raises(DataCorrupt, match="cannot be read"):
        get(toy)
    assert not (home / "toy").exists() and get(toy) == home / "toy"


def test_a_later_call_continues_what_an_earlier_one_gave_up(site: Any, toy: DataSet, home: Path):
    site.fail({"cut": 1000}, {"cut": 1000}, {"cut": 1000})
    with pytest.raises(DownloadError, match=r"after 3 failures in a row: .*continue from 3000 byt"):
        get(toy)
    assert not (home / "toy").exists()
    get(toy)
    assert site.requests[-1] == "bytes=3000-"
    assert tree(home / "toy") == site.files


def test_a_file_that_changes_in_the_middle_is_not_taken(site: Any, toy: DataSet, home: Path):
    right = site.body
    site.body = right[::-1]
    site.fail({"cut": 70_000, "then": right})
    with pytest.raises(DataCorrupt):
        get(toy)
    assert leftovers(home) == []
    assert tree(get(toy)) == site.files


def test_a_silent_server_counts_as_cut(site: Any, toy: DataSet):
    site.fail({"hang": True})
    seen: list[Progress] = []
    assert tree(get(toy, timeout=0.3, progress=seen.append)) == site.files
    assert any(p.stage == "retrying" and "timed out" in p.note for p in seen)


def test_passing_faults_are_tried_again_and_others_not(site: Any, toy: DataSet):
    site.fail({"status": 503}, {"status": 500})
    assert get(toy).is_dir()
    for faults, message, asked in (
        ([{"status": 500}] * 9, r"found after 3 failures in a row: HTTP 500", 3),
        ([{"status": 404}], r"toy.zip, found HTTP 404 .*--mirror", 1),
    ):
        site.requests.clear()
        site.fail(*faults)
        with pytest.raises(DownloadError, match=message):
            get(toy, force=True)
        assert len(site.requests) == asked
    assert verify(toy).ok, "a failed --force leaves what was there"


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "x", "", "http://", "http://a b/"]
)
def test_only_http_addresses(toy: DataSet, url: str):
    with pytest.raises(OptionError, match="must be a URL like"):
        get(toy, mirror=url)
    with pytest.raises(OptionError, match="must be a URL like"):
        get(replace(toy, url=url))


def test_redirects_lead_to_http_only(site: Any, toy: DataSet):
    site.fail({"redirect": f"{site.url}/elsewhere"})
    assert get(toy).is_dir()
    assert site.paths == ["/toy.zip", "/elsewhere"]
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "ftp://\x1b[31m/x"):
        site.fail({"redirect": target})
        with pytest.raises(DownloadError, match="redirects to"):
            get(toy, force=True)


# Verification of a folder.


def test_verify_by_numbers_and_content(site: Any, toy: DataSet, tmp_path: Path):
    folder = tmp_path / "made"
    for name, content in site.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    report = verify(toy, folder)
    assert report.ok and "more: not there (optional)" in str(report)
    game = folder / "root/dev/task-1/trial/game.txt"
    game.write_text("changed")
    assert verify(toy, folder).splits[0][1:] == (False, "3 of 3, content differs")
    game.unlink()
    assert verify(toy, folder).splits[0][1:] == (False, "2 of 3, 1 missing, content differs")
    for n in (7, 8):
        (folder / f"root/dev/task-{n}/trial").mkdir(parents=True)
        (folder / f"root/dev/task-{n}/trial/game.txt").write_text("new")
    report = verify(toy, folder)
    assert [split.ok for split in report.splits] == [False, True, True] and not report.ok
    assert "dev: 4 of 3, 1 extra, content differs" in str(report)
    with pytest.raises(
        DataNotFound, match=r"'root'\), found 'blob.bin', 'dev', 'test'; give the folder"
    ):
        verify(toy, folder / "root")


def test_verify_with_a_manifest_names_what_is_wrong(toy: DataSet, home: Path):
    with pytest.raises(DataNotFound, match=r"found no such folder; run: comap data get toy"):
        verify(toy)
    get(toy)
    trial = home / "toy/root/dev"
    (trial / "task-0/trial/game.txt").unlink()
    (trial / "task-1/trial/game.txt").write_text("changed")
    (trial / "task-8/trial").mkdir(parents=True)
    (trial / "task-8/trial/game.txt").write_text("new")
    assert verify(toy).splits[0].text.splitlines() == [
        "3 of 3, 1 missing, 1 extra, 1 changed, content differs",
        "    missing: dev/task-0/trial",
        "    extra: dev/task-8/trial",
        "    changed: dev/task-1/trial",
    ]


# Archives that try to write elsewhere, to fill the disk, or are broken.


def tar_of(members: list[tarfile.TarInfo | tuple[str, bytes]], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def evil_zip(name: str, mode: int = stat.S_IFREG | 0o644, content: bytes = b"x") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("root/good.txt", b"good")
        info = zipfile.ZipInfo("placeholder")
        info.filename = name
        info.external_attr = mode << 16
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile warns of a name that comes twice
            archive.writestr(info, content)
    return buffer.getvalue()


def encrypted_zip() -> bytes:
    data = bytearray(zip_of({"a": b"a"}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


EVIL = {
    "zip parent": (evil_zip("../evil"), "'../evil'"),
    "zip inner parent": (evil_zip("root/../../evil"), "evil'"),
    "zip absolute": (evil_zip("/tmp/evil"), "'/tmp/evil'"),
    "zip backslash": (evil_zip("root\\..\\evil"), "evil'"),
    "zip drive": (evil_zip("C:evil"), "'C:evil'"),
    "zip inner drive": (evil_zip("root/C:evil"), "evil'"),
    "zip NUL": (evil_zip("evil\0.txt"), "evil"),
    "zip link": (evil_zip("evil", stat.S_IFLNK | 0o777, b"/etc/passwd"), "a link: 'evil'"),
    "zip device": (evil_zip("evil", stat.S_IFCHR | 0o777), "a special file: 'evil'"),
    "zip twice": (evil_zip("root/good.txt"), "'root/good.txt' twice"),
    "zip file as folder": (evil_zip("root/good.txt/evil"), "'root/good.txt' twice"),
    "zip folder as file": (evil_zip("root"), "'root' twice"),
    "zip encrypted": (encrypted_zip(), "an encrypted one"),
    "zip empty": (zip_of({}), "found none"),
    "zip large": (zip_of({"a": bytes(1 << 23)}), "found more"),
    "zip many": (zip_of({str(n): b"" for n in range(101)}), "at most 100 entries"),
    "tar parent": (tar_of([("../evil", b"x")]), "'../evil'"),
    "tar absolute": (tar_of([("/tmp/evil", b"x")]), "'/tmp/evil'"),
    "tar symlink": (tar_of([special("evil", tarfile.SYMTYPE, "/etc")]), "a link: 'evil'"),
    "tar hard link": (tar_of([("a", b"x"), special("evil", tarfile.LNKTYPE, "a")]), "a link"),
    "tar through link": (
        tar_of([special("evil", tarfile.SYMTYPE, ".."), ("evil/x", b"x")]),
        "a link: 'evil'",
    ),
    "tar device": (tar_of([special("evil", tarfile.CHRTYPE)]), "a special file: 'evil'"),
    "tar fifo": (tar_of([special("evil", tarfile.FIFOTYPE)]), "a special file: 'evil'"),
    "tar twice": (tar_of([("a", b"x"), ("./a", b"y")]), "'a' twice"),
    "tar large": (tar_of([("a", bytes(1 << 23))], "w:xz"), "at most 4194304 bytes"),
    "tar long name": (tar_of([("a" * (1 << 23), b"")]), "at most 4194304 bytes"),
    "tar many": (tar_of([(str(n), b"") for n in range(101)]), "at most 100 entries"),
    "tar empty": (tar_of([]), "found none"),
    "tar cut": (tar_of([("a", os.urandom(50_000))])[:-20_000], "cannot be read"),
    "gzip broken": (b"\x1f\x8b" + bytes(100), "cannot be read"),
    "xz broken": (b"\xfd7zXZ\x00" + bytes(100), "cannot be read"),
    "web page": (b"<html>please log in</html>" * 99, "cannot be read"),
    "nothing": (b"", "cannot be read"),
}


@pytest.mark.parametrize("name", EVIL)
def test_unsafe_and_broken_archives_leave_nothing(site: Any, toy: DataSet, home: Path, name: str):
    site.body, found = EVIL[name]
    with pytest.raises(DataCorrupt, match="get the archive from its official address") as error:
        get(toy)
    assert found in str(error.value)
    assert leftovers(home) == []
    assert not list(home.parent.rglob("*evil*"))


def test_a_bomb_that_lies_about_its_size_is_stopped(tmp_path: Path):
    data = bytearray(zip_of({"a": bytes(1 << 20)}))
    for where in (data.index(b"PK\x03\x04") + 22, data.index(b"PK\x01\x02") + 24):
        data[where : where + 4] = (10).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(DataCorrupt):
        unpack(tmp_path / "a.zip", tmp_path / "new", replace(LIMITS, unpacked_bytes=1000))
    assert sum(path.stat().st_size for path in (tmp_path / "new").iterdir()) <= 1000


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_tar_archives_unpack_without_their_modes(tmp_path: Path, mode: str):
    info = special("./b", tarfile.DIRTYPE)
    info.mode = 0
    data = tar_of([("a/x.txt", b"1"), info, ("./b//y.txt", b"2"), ("n" * 150, b"3")], mode)
    (tmp_path / "archive").write_bytes(data)
    unpack(tmp_path / "archive", tmp_path / "new", LIMITS)
    assert tree(tmp_path / "new") == {"a/x.txt": b"1", "b/y.txt": b"2", "n" * 150: b"3"}
    assert stat.S_IMODE((tmp_path / "new/b").stat().st_mode) & 0o700 == 0o700
