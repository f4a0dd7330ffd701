"""Archives that try to write elsewhere, to fill the disk, or are broken."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.envs.data import MANIFEST, DataSet, Limits, get, unpack
from comap.errors import DataCorrupt

LIMITS = Limits(download_bytes=1 << 22, entries=100, unpacked_bytes=1 << 22)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }


def leftovers(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir() if path.name != ".toy.lock")


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


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


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
