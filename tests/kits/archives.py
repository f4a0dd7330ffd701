"""Archives to download, and how large they may be."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from comap.envs.datasets import Limits

LIMITS = Limits(download_bytes=1 << 22, entries=100, unpacked_bytes=1 << 22)


def zip_of(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
