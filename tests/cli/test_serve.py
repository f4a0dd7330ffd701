"""Servers of searches and tools: to other machines only with a token, which requests must send."""

from __future__ import annotations

import pytest

from comap.cli import main
from comap.envs.stabletoolbench.backends import VirtualTools, virtual_app


@pytest.mark.parametrize("kind", ["search", "tools"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_a_token(kind, host, tmp_path, capsys):
    assert main(["serve", kind, "--host", host, "--port", "0", "--no-token"]) == 2
    assert "expected a token that requests must send, found none" in capsys.readouterr().err
    (tmp_path / "token").write_text("short")
    words = ["serve", kind, "--host", host, "--token-file", str(tmp_path / "token")]
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert "at least 16 characters, found 5" in errors and "short" not in errors


def test_tools_want_the_token():
    pytest.importorskip("httpx")
    testclient = pytest.importorskip("starlette.testclient")
    app = virtual_app(VirtualTools([], world=0), token="a-token-of-tools")
    call = {"category": "Media", "tool_name": "library", "api_name": "search", "tool_input": "{}"}
    with testclient.TestClient(app, "http://127.0.0.1") as client:
        for headers in ({}, {"Authorization": "Bearer a-token-of-toolz"}, {"Authorization": ""}):
            assert client.post("/virtual", json=call, headers=headers).status_code == 401
        right = {"Authorization": "Bearer a-token-of-tools"}
        assert client.post("/virtual", json=call, headers=right).status_code == 200
