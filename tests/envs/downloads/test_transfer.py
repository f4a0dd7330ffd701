"""Downloads through cut connections, changed files and broken servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.envs.datasets import DataSet
from comap.envs.downloads import Progress, get
from comap.envs.transfer import Patience, fetch
from comap.envs.verification import MANIFEST, verify
from comap.errors import DownloadError, OptionError

QUICK = Patience(attempts=3, pause=0.01, timeout=0.4, lock=10)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }


@pytest.mark.parametrize("cuts", [[100_000], [1, 100_000], [0, 50_000, 50_000]])
def test_a_cut_download_goes_on_where_it_was_cut(site: Any, toy: DataSet, cuts: list[int]):
    site.fail(*[{"cut": cut} for cut in cuts])
    patience = replace(QUICK, attempts=len(cuts) + 1)
    assert tree(get(toy, patience=patience)) == site.files
    offsets, expected = 0, [""]
    for cut in cuts:
        offsets += cut
        expected.append(f"bytes={offsets}-" if offsets else "")
    assert site.requests == expected


def test_a_later_call_continues_what_an_earlier_one_gave_up(site: Any, toy: DataSet, home: Path):
    site.fail({"cut": 1000}, {"cut": 1000}, {"cut": 1000})
    with pytest.raises(DownloadError, match=r"after 3 failures in a row: .*continue from 3000 byt"):
        get(toy, patience=QUICK)
    assert not (home / "toy").exists()
    get(toy, patience=QUICK)
    assert site.requests[-1] == "bytes=3000-"
    assert tree(home / "toy") == site.files


def test_progress_forgives_earlier_failures(site: Any, tmp_path: Path):
    site.body = bytes(5 << 20)
    site.fail(*[{"cut": 1 << 20} for _ in range(4)])
    fetch(f"{site.url}/x", tmp_path / "x", max_bytes=1 << 23, patience=replace(QUICK, attempts=2))
    assert (tmp_path / "x").read_bytes() == site.body


def test_a_server_without_ranges_sends_all_again(site: Any, toy: DataSet):
    site.ranges = False
    site.fail({"cut": 70_000}, {"cut": 60_000})
    assert tree(get(toy, patience=QUICK)) == site.files
    assert site.requests[1] == "bytes=70000-"


def test_a_part_without_a_version_mark_is_not_continued(site: Any, toy: DataSet):
    site.tag = False
    site.fail({"cut": 70_000})
    assert tree(get(toy, patience=QUICK)) == site.files
    assert site.requests == ["", ""]


def test_a_file_that_changes_in_the_middle_is_downloaded_anew(site: Any, toy: DataSet):
    right = site.body
    site.body = right[::-1]
    site.fail({"cut": 70_000, "then": right})
    assert tree(get(toy, patience=QUICK)) == site.files
    assert site.requests == ["", "bytes=70000-"]


def test_a_wrong_range_is_not_taken(site: Any, toy: DataSet):
    site.fail({"cut": 70_000}, {"wrong_range": True})
    assert tree(get(toy, patience=QUICK)) == site.files
    assert site.requests == ["", "bytes=70000-", ""]


def test_a_part_longer_than_the_file_is_not_taken(site: Any, tmp_path: Path):
    site.fail({"cut": 70_000}, {"status": 416})
    fetch(f"{site.url}/x", tmp_path / "x", max_bytes=1 << 20, patience=QUICK)
    assert (tmp_path / "x").read_bytes() == site.body
    assert site.requests == ["", "bytes=70000-", ""]


def test_a_silent_server_counts_as_cut(site: Any, toy: DataSet):
    site.fail({"hang": True})
    told: list[Progress] = []
    assert tree(get(toy, patience=QUICK, progress=told.append)) == site.files
    assert any(p.stage == "retrying" and "timed out" in p.note for p in told)


def test_passing_faults_are_tried_again_and_others_not(site: Any, toy: DataSet):
    site.fail({"status": 503}, {"status": 500})
    assert get(toy, patience=QUICK).is_dir()
    site.requests.clear()
    site.fail(*[{"status": 500}] * 9)
    with pytest.raises(DownloadError, match=r"found after 3 failures in a row: HTTP 500"):
        get(toy, patience=QUICK, force=True)
    assert len(site.requests) == 3
    site.requests.clear()
    site.fail({"status": 404})
    with pytest.raises(DownloadError, match=r"toy.zip, found HTTP 404 .*--mirror"):
        get(toy, patience=QUICK, force=True)
    assert len(site.requests) == 1
    assert verify(toy).ok, "a failed --force leaves what was there"


def test_no_server_at_all(toy: DataSet, site: Any):
    nobody = replace(toy, url="http://127.0.0.1:9/toy.zip")
    with pytest.raises(DownloadError, match="no answer"):
        get(nobody, patience=QUICK)
    assert get(nobody, mirror=f"{site.url}/files/", patience=QUICK).is_dir()
    assert site.paths == ["/files/toy.zip"]


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "x", "", "http://", "http://a b/"]
)
def test_only_http_addresses(toy: DataSet, url: str):
    with pytest.raises(OptionError, match="expected an address like https"):
        get(toy, mirror=url)
    with pytest.raises(OptionError, match="expected an address like https"):
        get(replace(toy, url=url))


def test_redirects_lead_to_http_only(site: Any, toy: DataSet):
    site.fail({"redirect": f"{site.url}/elsewhere"})
    assert get(toy, patience=QUICK).is_dir()
    assert site.paths == ["/toy.zip", "/elsewhere"]
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"):
        site.fail({"redirect": target})
        with pytest.raises(DownloadError, match=r"[Rr]edirect(ion)? to "):
            get(toy, patience=QUICK, force=True)
