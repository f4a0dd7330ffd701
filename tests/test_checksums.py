"""Checksums: whatever is changed is told or says the same; older files are read as they stand."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.checksums import SEAL, seal, sha256_of, sums_of, unseal, wrong_file
from comap.errors import DataCorrupt

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=6).filter(lambda name: name != SEAL), VALUES, max_size=4)
INDENTS = st.sampled_from([None, 1, 2])


@given(OBJECTS, INDENTS, st.booleans())
def test_what_is_sealed_comes_back(data: dict[str, Any], indent: int | None, ascii_: bool) -> None:
    text = seal(json.dumps(data, indent=indent, ensure_ascii=ascii_))
    assert unseal(text) == data == unseal(text.encode("utf-8", "surrogatepass") + b"\r\n")
    assert list(json.loads(text))[-1] == SEAL
    told = json.loads(text)[SEAL]
    if data:
        alike = json.dumps({**data, SEAL: told}, indent=indent, ensure_ascii=ascii_)
        assert text == alike, "only the last member is added"


@settings(max_examples=40, deadline=None)
@given(OBJECTS, INDENTS, st.randoms(use_true_random=False))
def test_any_flipped_bits_are_told_or_say_the_same(
    data: dict[str, Any], indent: int | None, rng: Any
) -> None:
    whole = seal(json.dumps(data, indent=indent)).encode("ascii")
    for bit in range(8 * len(whole)):  # each alone, then with up to three others
        damaged = bytearray(whole)
        for one in (bit, *(rng.randrange(8 * len(whole)) for _ in range(rng.choice((0, 0, 3))))):
            damaged[one // 8] ^= 1 << one % 8
        try:
            assert unseal(bytes(damaged)) == data
        except ValueError:
            continue


@given(OBJECTS | VALUES.filter(lambda value: not isinstance(value, dict)))
def test_what_has_no_checksum_is_read_as_it_stands(data: Any) -> None:
    assert unseal(json.dumps(data)) == data


@pytest.mark.parametrize("indent", [None, 1, 2])
def test_what_other_programs_write_anew_is_compared_by_its_values(indent: int | None) -> None:
    data = {"a": [1, 2.5, "ü"], "b": {"c": None}}
    sealed = json.loads(seal(json.dumps(data, indent=indent)))
    for text in (
        json.dumps(sealed, separators=(",", ":")),
        json.dumps(sealed, indent=4),
        json.dumps(sealed, ensure_ascii=False),
        json.dumps({SEAL: sealed[SEAL], **data}),
    ):
        assert unseal(text) == data
        changed = text.replace("2.5", "2.6")
        with pytest.raises(DataCorrupt, match=r'was changed since; restore it.*remove its "crc32"'):
            unseal(changed)
    with pytest.raises(DataCorrupt):
        unseal(json.dumps({"b": data["b"], "a": data["a"], SEAL: sealed[SEAL]}))
    assert unseal(json.dumps({"b": data["b"], "a": data["a"]}))


def test_the_checksum_is_known() -> None:
    """Files must be readable by later versions: the form does not change."""
    assert seal('{"a": 1}') == '{"a": 1, "crc32": "7aa88204"}'
    assert seal("{}") == '{"crc32": "15d54739"}'
    for name in ("crops", "error", "score", "steps", "facts"):
        assert unseal(f'{{"x": 1, "{name}": "12345678"}}')["x"] == 1
    assert unseal('{"x": 1, "crc64": "0123456789abcdef"}')["x"] == 1
    with pytest.raises(DataCorrupt, match="expected \"crc32\" as the last name, found 'crc33'"):
        unseal('{"x": 1, "crc33": "12345678"}')
    for text in ("[1]", "1", "", "{"):
        with pytest.raises(ValueError, match="text of a JSON object"):
            seal(text)


def test_files_are_named_that_were_changed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.bin", "in/b.bin"):
        (tmp_path / name).write_bytes(os.urandom(100))
    sums = json.loads(json.dumps(sums_of(tmp_path, ["in/b.bin", "a.bin"])))
    assert list(sums) == ["a.bin", "in/b.bin"]
    assert wrong_file(tmp_path, sums) == "" == wrong_file(tmp_path, sums, fresh=False)
    content = bytearray((tmp_path / "in/b.bin").read_bytes())
    content[50] ^= 4
    (tmp_path / "in/b.bin").write_bytes(content)
    assert wrong_file(tmp_path, sums).startswith("expected in/b.bin with the SHA-256 ")
    (tmp_path / "a.bin").write_bytes(b"1")
    assert wrong_file(tmp_path, sums) == "expected a.bin of 100 bytes, found 1 bytes"
    (tmp_path / "a.bin").unlink()
    assert wrong_file(tmp_path, sums) == "expected a.bin of 100 bytes, found none"
    for hostile in ([], {"../a": sums["a.bin"]}, {"/etc/hosts": sums["a.bin"]}, {"a.bin": 3}):
        assert wrong_file(tmp_path, hostile).startswith("expected size")


def test_what_was_read_before_is_read_again_once_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123")
    sums = sums_of(tmp_path, ["a.bin"])
    for back in (0.0, 100.0):  # just written, and written long ago
        path.write_bytes(b"0123")
        os.utime(path, (time.time() - back, time.time() - back))
        assert not wrong_file(tmp_path, sums, fresh=False)
        path.write_bytes(b"0124")
        assert "SHA-256" in wrong_file(tmp_path, sums, fresh=False)
    assert sha256_of(path) != sums["a.bin"]["sha256"]
