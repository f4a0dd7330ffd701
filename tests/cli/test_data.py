"""`comap data verify webshop | searchqa`, and opening: what was built, and what was changed since."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from comap.cli import main
from comap.envs.searchqa import open_index
from comap.envs.searchqa.generated import generated_folder
from comap.envs.webshop import Catalog
from comap.envs.webshop.generate import embedded_catalog
from comap.errors import DataCorrupt


def folder_of(name, tmp_path):
    original_folder = (
        embedded_catalog().folder if name == "webshop" else generated_folder() / "index"
    )
    return Path(shutil.copytree(original_folder, tmp_path / "copy"))


def opened(name, folder):
    return Catalog.open(folder) if name == "webshop" else open_index(folder)


@pytest.mark.parametrize(
    ("name", "file"), [("webshop", "products.bin"), ("searchqa", "passages.db")]
)
def test_changed_files_are_told(name, file, tmp_path, capsys, monkeypatch):
    folder = folder_of(name, tmp_path)
    words = ["data", "verify", name, "--data-dir", str(folder)]
    assert main(words) == 0 and "all as they were made" in capsys.readouterr().out
    place = next(path for path in folder.iterdir() if path.name == file)
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 16
    place.write_bytes(content)
    assert main(words) == 1
    assert f"expected {file} with the SHA-256" in capsys.readouterr().out
    with pytest.raises(DataCorrupt, match=f"{file} with the SHA-256.*comap data build {name}"):
        opened(name, Path(shutil.copytree(folder, tmp_path / "again")))
    for module in ("comap.envs.searchqa.index", "comap.envs.webshop.catalog"):
        monkeypatch.setattr(f"{module}.QUICK", 1000)
    assert opened(name, Path(shutil.copytree(folder, tmp_path / "large"))), "too large to be read"


@pytest.mark.parametrize("name", ["webshop", "searchqa"])
def test_older_folders_have_none(name, tmp_path, capsys):
    folder = folder_of(name, tmp_path)
    path = folder / ("manifest.json" if name == "webshop" else "index.json")
    manifest = json.loads(path.read_bytes())
    del manifest["digests"]
    path.write_text(json.dumps(manifest))
    assert main(["data", "verify", name, "--data-dir", str(folder)]) == 0
    assert "made without SHA-256" in capsys.readouterr().out
    assert main(["data", "verify", name, "--data-dir", str(tmp_path / "nowhere")]) == 2
    assert f"comap data build {name}" in capsys.readouterr().err
