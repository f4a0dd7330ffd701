"""`get`: a data set is there whole, as the catalogue says, or not at all; `verify` says what is wrong."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from comap.envs import data
from comap.envs.data import MANIFEST, get, is_installed, unpack, verify
from comap.envs.datasets import DataSet
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
    reports: list[Progress] = []
    path = get(toy, progress=reports.append)
    assert path == home / "toy" == data_path("toy")
    assert tree(path) == site.files and leftovers(home) == ["toy"]
    assert verify(toy).ok and is_installed(toy)
    assert list(dict.fromkeys(p.stage for p in reports)) == ["downloading", "unpacking", "checking"]
    downloads = [p for p in reports if p.stage == "downloading"]
    assert downloads[0].done == 0 and downloads[-1].done == downloads[-1].total == len(site.body)
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


def test_another_release_is_got_when_it_is_named(site: Any, toy: DataSet, home: Path):
    """Its content is not known, but how many items it has; its folder may have another name."""
    others = {"two": toy.url.replace("toy.zip", "two.zip")}
    toy = replace(toy, release="one", other_releases=others, other_roots=("root2",))
    get(toy)
    with pytest.raises(
        OptionError, match=r"expected two of 'toy' .* found one; .*--release two --f"
    ):
        get(toy, release="two")
    with pytest.raises(OptionError, match="release cannot be 'three'"):
        get(toy, release="three")

    files = {name.replace("root", "root2"): text + b"!" for name, text in site.files.items()}
    site.body = site.pack(files)
    get(toy, release="two", force=True)
    assert site.requests[-1].endswith("two.zip") and tree(home / "toy") == files
    report = verify(toy)
    assert report.ok and report.splits[0][1:] == (True, "3 of 3, content not known")
    get(toy, release="two")
    with pytest.raises(OptionError, match="found two"):
        get(toy)


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
    with pytest.raises(DownloadError, match="expected at most 1000 bytes"):
        get(replace(toy, limits=replace(toy.limits, download_bytes=1000)))
    assert len(site.requests) == 1
    assert leftovers(home) == []


CHILD = """
import os, signal, sys
sys.path[:0] = {path!r}
from comap.envs.datasets import DataSet, Split, Limits
from comap.envs.data import *
toy = {toy!r}
def listen(progress):
    if progress.stage == {stage!r} and progress.done >= {done}:
        os.kill(os.getpid(), signal.SIGKILL)
print(get(toy, timeout=5, progress=listen))
"""


def child(toy: DataSet, stage: str = "", kill_at: int = 0) -> subprocess.Popen[str]:
    code = CHILD.format(path=sys.path, toy=toy, stage=stage, done=kill_at)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills need POSIX signals")
@pytest.mark.parametrize(
    ("stage", "kill_at", "requests"),
    [("downloading", 30_000, 2), ("unpacking", 2, 2), ("checking", 2, 2)],
)
def test_a_kill_leaves_nothing_half_done(
    site: Any, toy: DataSet, home: Path, stage: str, kill_at: int, requests: int
):
    process = child(toy, stage, kill_at)
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
    processes = [child(toy), child(toy)]
    outputs = [process.communicate(timeout=20)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs == [str(home / "toy")] * 2
    assert len(site.requests) == 1


# Cut connections, changed files and broken servers.


def test_a_cut_download_begins_again(site: Any, toy: DataSet):
    site.fail({"cut": 100_000}, {"cut": 0})
    assert tree(get(toy)) == site.files
    assert len(site.requests) == 3


def test_half_a_file_of_unknown_length_is_not_taken_for_a_whole_one(
    site: Any, toy: DataSet, home: Path
):
    site.fail({"cut": 1000, "no_length": True})
    with pytest.raises(DataCorrupt, match="cannot be read"):
        get(toy)
    assert not (home / "toy").exists() and get(toy) == home / "toy"


def test_a_silent_server_counts_as_cut(site: Any, toy: DataSet):
    site.fail({"hang": True})
    assert tree(get(toy, timeout=0.3)) == site.files
    assert len(site.requests) == 2


def test_faults_are_tried_again_and_told(site: Any, toy: DataSet):
    site.fail({"status": 503}, {"status": 500})
    assert get(toy).is_dir()
    for status in (500, 404):
        site.requests.clear()
        site.fail(*[{"status": status}] * 4)
        with pytest.raises(DownloadError, match=rf"toy.zip, found: {status} .*--mirror"):
            get(toy, force=True)
        assert len(site.requests) == 4
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
    assert site.requests == ["/toy.zip", "/elsewhere"]
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "ftp://\x1b[31m/x"):
        site.fail(*[{"redirect": target}] * 4)
        with pytest.raises(DownloadError, match=r"toy.zip, found: .*--mirror") as error:
            get(toy, force=True)
        assert "\x1b" not in str(error.value)


def test_a_redirect_to_a_less_safe_address_is_refused():
    response = requests.Response()
    response.status_code = 302
    response.url = "https://host/toy.zip"
    response.headers["location"] = "https://mirror/toy.zip"
    data._refuse_downgrade(response)
    response.headers["location"] = "http://mirror/toy.zip"
    with pytest.raises(DownloadError, match="an address no less safe"):
        data._refuse_downgrade(response)


def test_each_answer_is_looked_at_for_such_a_redirect(
    site: Any, toy: DataSet, monkeypatch: pytest.MonkeyPatch
):
    statuses = []
    monkeypatch.setattr(
        data, "_refuse_downgrade", lambda response, **_: statuses.append(response.status_code)
    )
    site.fail({"redirect": f"{site.url}/elsewhere"})
    get(toy)
    assert statuses == [302, 200]


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


def evil_zip(name: str, mode: int = stat.S_IFREG | 0o644, content: bytes = b"x") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("root/good.txt", b"good")
        info = zipfile.ZipInfo("placeholder")
        info.filename = name
        info.external_attr = mode << 16
        archive.writestr(info, content)
    return buffer.getvalue()


def encrypted_zip() -> bytes:
    data = bytearray(zip_of({"a": b"a"}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


EVIL = {
    "parent": (evil_zip("../evil"), "other content"),
    "inner parent": (evil_zip("root/../../evil"), "other content"),
    "absolute": (evil_zip("/tmp/evil"), "other content"),
    "backslash": (evil_zip("root\\..\\evil"), "other content"),
    "drive": (evil_zip("C:evil"), "other content"),
    "NUL": (evil_zip("evil\0.txt"), "other content"),
    "link": (evil_zip("evil", stat.S_IFLNK | 0o777, b"/etc/passwd"), "other content"),
    "device": (evil_zip("evil", stat.S_IFCHR | 0o777), "other content"),
    "twice": (evil_zip("root/good.txt"), "other content"),
    "file as folder": (evil_zip("root/good.txt/evil"), "cannot be read"),
    "folder as file": (evil_zip("root"), "cannot be read"),
    "encrypted": (encrypted_zip(), "is encrypted"),
    "empty": (zip_of({}), "other content"),
    "large": (zip_of({"a": bytes(1 << 23)}), "found 1 and 8388608"),
    "many": (zip_of({str(n): b"" for n in range(101)}), "at most 100 entries"),
    "web page": (b"<html>please log in</html>" * 99, "cannot be read"),
    "nothing": (b"", "cannot be read"),
}


@pytest.mark.parametrize("name", EVIL)
def test_unsafe_and_broken_archives_leave_nothing(site: Any, toy: DataSet, home: Path, name: str):
    site.body, phrase = EVIL[name]
    with pytest.raises(DataCorrupt, match="--mirror") as error:
        get(toy)
    assert phrase in str(error.value)
    assert leftovers(home) == []
    assert not list(home.parent.rglob("*evil*")) and not Path("/tmp/evil").exists()


@pytest.mark.parametrize("name", ["parent", "inner parent", "absolute", "link"])
def test_what_is_unpacked_stays_in_its_folder_and_is_no_link(tmp_path: Path, name: str):
    (tmp_path / "a.zip").write_bytes(EVIL[name][0])
    unpack(tmp_path / "a.zip", tmp_path / "new", LIMITS)
    paths = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    assert len(paths) == 2 and not any(path.is_symlink() for path in paths)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "new"]


def test_a_bomb_that_lies_about_its_size_is_stopped(tmp_path: Path):
    data = bytearray(zip_of({"a": bytes(1 << 20)}))
    for offset in (data.index(b"PK\x03\x04") + 22, data.index(b"PK\x01\x02") + 24):
        data[offset : offset + 4] = (10).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(DataCorrupt):
        unpack(tmp_path / "a.zip", tmp_path / "new", replace(LIMITS, unpacked_bytes=1000))
    assert sum(path.stat().st_size for path in (tmp_path / "new").iterdir()) <= 1000
