"""The server in AgentGym's style: whole episodes, many clients, limits, and what no request may do."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap
from comap.cli import main
from comap.envs.json_server import MAX_REQUEST_BYTES, Refused
from comap.errors import OptionError
from comap.integrations import Offered, Sessions, agentgym_client
from comap.integrations.agentgym import EnvironmentServer
from comap.integrations.agentgym_client import RemoteEnvironment, RequestRefused

ALFWORLD = "comap/ALFWorld-v0"
TOKEN = "a-token-of-some-length"
ROOT = Path(comap.__file__).parent.parent


def offered(**options: Any) -> Offered:
    return Offered([ALFWORLD, "comap/WebShop-v0"], {"source": "generated"}, ["split"], **options)


def serve(server: EnvironmentServer) -> Iterator[EnvironmentServer]:
    with server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[EnvironmentServer]:
    yield from serve(EnvironmentServer(Sessions(offered(), limit=40)))


@pytest.fixture
def guarded() -> Iterator[EnvironmentServer]:
    yield from serve(EnvironmentServer(Sessions(offered(), limit=2), token=TOKEN))


def asked(
    server: EnvironmentServer, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, sent, {"content-type": "application/json"} | named)
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def test_an_episode_is_the_same_as_here(server: EnvironmentServer) -> None:
    """An expert's episode through the server: the same texts, rewards and facts as without it."""
    env = gym.make(ALFWORLD, source="generated", split="valid_seen")
    task = env.unwrapped.tasks.ids[3]
    observation, info = env.reset(options={"task": task})
    with RemoteEnvironment(server.base, ALFWORLD, {"split": "valid_seen"}) as remote:
        assert remote.tasks == len(env.unwrapped.tasks)
        told = remote.reset(data_idx=3)
        assert (told["task"], told["observation"]) == (task, observation)
        done = False
        while not done:
            action = env.unwrapped.expert_action()
            observation, reward, terminated, truncated, info = env.step(action)
            told = remote.step(action)
            done = terminated or truncated
            assert told["observation"] == observation == remote.observation()
            assert (told["reward"], told["done"]) == (reward, done)
            assert told["facts"] == info["facts"].to_text()
            assert remote.available_actions() == list(info["admissible_actions"])
        assert told["success"] and told["score"] == 1.0
        with pytest.raises(RequestRefused, match="ended") as refused:
            remote.step("look")
        assert refused.value.status == 409
        assert remote.reset(seed=5)["observation"] == env.reset(seed=5)[0]


def test_a_client_keeps_its_connection_while_it_is_fresh(
    server: EnvironmentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    process = EnvironmentServer.process_request

    def counted(self: Any, request: Any, client_address: Any) -> None:
        taken.append(client_address)
        process(self, request, client_address)

    monkeypatch.setattr(EnvironmentServer, "process_request", counted)
    with RemoteEnvironment(server.base, ALFWORLD) as remote:
        remote.reset(data_idx=1)
        first = [remote.step("look")["observation"], remote.observation()]
        assert len(taken) == 1
        with pytest.raises(RequestRefused, match="data_idx"):
            remote.reset(data_idx=10**9)  # a refusal may end the connection, not the client
        assert remote.observation() == first[1]
        before = len(taken)
        monkeypatch.setattr(agentgym_client, "_FRESH", -1.0)
        assert remote.reset(data_idx=1)["step"] == 0 and remote.step("look")["step"] == 1
        assert len(taken) == before + 2
    assert len(taken) == before + 3


def test_many_clients_at_once(server: EnvironmentServer) -> None:
    def play(place: int) -> list[str]:
        with RemoteEnvironment(server.base, ALFWORLD) as remote:
            texts = [remote.reset(data_idx=place % 4)["observation"]]
            for _ in range(5):
                texts.append(
                    remote.step((remote.available_actions() or [""])[place % 3])["observation"]
                )
            return texts

    with ThreadPoolExecutor(16) as pool:
        played = list(pool.map(play, [*range(12), *range(12)]))
    assert played[:12] == played[12:] and played[0] != played[1]
    assert len(server.sessions) == 0


def test_a_limit_and_idle_environments() -> None:
    now = [0.0]
    sessions = Sessions(offered(), limit=2, idle=10.0, clock=lambda: now[0])
    first, _ = sessions.create()
    now[0] = 8.0
    second, _ = sessions.create()
    with pytest.raises(Refused, match="fewer than 2") as refused:
        sessions.create()
    assert refused.value.status == 503
    now[0] = 11.0
    third, _ = sessions.create()  # the first was idle, and is gone
    with pytest.raises(Refused, match="idle"), sessions.use(first):
        pass
    with sessions.use(second) as used:
        now[0] = 60.0  # in use all the time, however long
        assert sessions.close_idle() == 1
        assert used.reset(seed=0)["step"] == 0
    assert not sessions.close(third) and sessions.close(second) and len(sessions) == 0


def test_idle_environments_are_closed_by_the_server() -> None:
    for running in serve(EnvironmentServer(Sessions(offered(), idle=0.05))):
        status, _ = asked(running, "POST", "/create", {})
        assert status == 200
        waited = threading.Event()
        for _ in range(100):
            if not len(running.sessions):
                break
            waited.wait(0.05)
        assert len(running.sessions) == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/create", b"{", 400, "expected JSON"),
        ("/create", b"[" * 100_000, 400, "expected JSON"),
        ("/create", b"\xff", 400, "expected JSON"),
        ("/create", [], 422, "expected a JSON object"),
        ("/create", b" " * (MAX_REQUEST_BYTES + 1), 413, "at most"),
        ("/create", {"env": "os:system"}, 404, "expected an environment of this server"),
        ("/create", {"env": "comap/ScienceWorld-v0"}, 404, "expected an environment of this"),
        ("/create", {"env": 3}, 404, "found 'int'"),
        ("/create", {"options": {"data_dir": "/etc"}}, 422, "expected options of 'split'"),
        ("/create", {"options": {"split": ["train"]}}, 422, "short text"),
        ("/create", {"options": {"split": "../../etc"}}, 422, "split"),
        ("/create", {"options": "split"}, 422, "object"),
        ("/reset", {"id": "../x"}, 404, "found 'str'"),
        ("/reset", {"id": True}, 404, "open environment"),
        ("/reset", {"id": 3}, 404, "open environment"),
        ("/reset", {"id": "ID", "task": "../../etc/passwd"}, 404, "expected a task"),
        ("/reset", {"id": "ID", "task": 3}, 422, "expected 'task'"),
        ("/reset", {"id": "ID", "data_idx": -1}, 422, "whole number from 0"),
        ("/reset", {"id": "ID", "data_idx": 10**30}, 422, "whole number from 0"),
        ("/reset", {"id": "ID", "seed": "0"}, 422, "expected 'seed'"),
        ("/reset", {"id": "ID", "seed": -1}, 422, "expected 'seed'"),
        ("/reset", {"id": "ID", "game": 0, "data_idx": 0}, 422, "expected one of"),
        ("/step", {"id": "ID", "action": "look"}, 409, "reset first"),
        ("/step", {"id": "ID", "action": ["look"]}, 422, "expected 'action'"),
        ("/step", {"id": "ID"}, 422, "expected 'action'"),
        ("/jump", {}, 404, "POST /step"),
        ("/observation", {}, 405, "expected GET"),
    ],
)
def test_wrong_requests_are_told(
    path: str, body: Any, status: int, said: str, server: EnvironmentServer
) -> None:
    _, created = asked(server, "POST", "/create", {})
    if isinstance(body, dict) and body.get("id") == "ID":
        body = body | {"id": created["id"]}
    found, told = asked(server, "POST", path, body)
    assert found == status and said in told["error"] and "Traceback" not in told["error"]
    assert asked(server, "POST", "/close", {"id": created["id"]})[1]["closed"]


def test_what_is_no_request(server: EnvironmentServer) -> None:
    for method, path in (
        ("GET", "/observation"),
        ("GET", "/detail?id=x"),
        ("GET", "/detail?id=９"),
    ):
        quoted = path.encode().decode("latin-1")
        connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
        connection.putrequest(method, quoted.replace("９".encode().decode("latin-1"), "%EF%BC%99"))
        connection.endheaders()
        assert connection.getresponse().status == 404
    assert asked(server, "DELETE", "/create")[0] == 501
    assert asked(server, "GET", "/", b"{}")[0] == 400
    status, told = asked(server, "GET", "/")
    assert status == 200 and told["environments"][0] == ALFWORLD and told["options"] == ["split"]


def test_web_pages_are_kept_out(server: EnvironmentServer) -> None:
    assert asked(server, "POST", "/create", {}, origin="http://a.example")[0] == 403
    assert asked(server, "GET", "/", host="a.example:80")[0] == 403
    assert asked(server, "POST", "/create", {}, content_type="text/plain")[0] == 415


def test_a_token_is_wanted(guarded: EnvironmentServer) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        status, told = asked(guarded, "POST", "/create", {}, **headers)
        assert status == 401 and TOKEN not in told["error"]
    with pytest.raises(RequestRefused, match="401"):
        RemoteEnvironment(guarded.base)
    with RemoteEnvironment(guarded.base, token=TOKEN) as remote:
        assert remote.reset(seed=0)["step"] == 0


def test_other_machines_need_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COMAP_SERVE_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "a.example"):
        with pytest.raises(OptionError, match="token"):
            EnvironmentServer(Sessions(offered()), host)
    with pytest.raises(OptionError, match="16 characters"):
        EnvironmentServer(Sessions(offered()), token="short")
    words = ["serve", "env", "--env", ALFWORLD, "--port", "0"]
    assert main([*words, "--host", "0.0.0.0"]) == 1
    assert main([*words, "--token-file", str(tmp_path / "none")]) == 1
    assert main([*words, "--allow", "data_dir"]) == 1
    assert main([*words, "--env-option", "split=nowhere"]) == 1
    assert main(["serve", "env", "--env", "CartPole-v1"]) == 1


def test_the_command_serves(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    words = [sys.executable, "-m", "comap", "serve", "env", "--env", ALFWORLD, "--port", "0"]
    words += ["--token-file", str(token), "--env-option", "source=generated"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving http://127.0.0.1:") and TOKEN not in line
        with RemoteEnvironment(line.split()[1], token=TOKEN) as remote:
            assert remote.reset(data_idx=0)["task"].startswith("generated/")
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("given", ["http://127.0.0.1:9/retrieve", "/etc", "..\\up", "host:80"])
def test_no_client_names_a_place_or_an_address(given: str) -> None:
    """An allowed option may be a word or an address: the address is not a client's to choose."""
    made = Offered(["comap/SearchQA-v0"], {"source": "generated"}, ["retriever"])
    with pytest.raises(OptionError, match="a place or an address"):
        made.make(None, {"retriever": given})
    made.make(None, {"retriever": "auto"}).close()
