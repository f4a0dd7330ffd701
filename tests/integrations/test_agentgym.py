"""The server in AgentGym's style: whole episodes, many clients, limits, and what no request may do."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import gymnasium as gym
import pytest

import comap
from comap.cli import main
from comap.envs.http import CLIENT, MAX_REQUEST_BYTES, Refused, Server
from comap.errors import OptionError
from comap.integrations import Offered, Sessions
from comap.integrations.agentgym import agentgym_app

pytest.importorskip("uvicorn")

ALFWORLD = "comap/ALFWorld-v0"
TOKEN = "a-token-of-some-length"
ROOT = Path(comap.__file__).parent.parent


def offered(**options):
    return Offered([ALFWORLD, "comap/WebShop-v0"], {"source": "generated"}, ["split"], **options)


@pytest.fixture(scope="module")
def sessions():
    return Sessions(offered(), limit=40)


@pytest.fixture(scope="module")
def base(sessions):
    """The address of a server in a thread."""
    with Server(agentgym_app(sessions)) as server:
        yield server.base


def ask(base, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(base.removeprefix("http://"), timeout=10)
    payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, payload, {"content-type": "application/json"} | header_fields)
    response = connection.getresponse()
    status_and_body = response.status, json.loads(response.read())
    connection.close()
    return status_and_body


class Remote:
    """An environment of a server, by plain requests."""

    def __init__(self, base, options=None, token=""):
        self.base, self.headers = base, {"authorization": f"Bearer {token}"} if token else {}
        answer = self.post("create", env=ALFWORLD, options=options or {})
        self.number, self.tasks = answer["id"], answer["tasks"]

    def post(self, endpoint, **body):
        status, answer = ask(self.base, "POST", f"/{endpoint}", body, **self.headers)
        assert status == 200, answer
        return answer

    def get(self, endpoint):
        status, answer = ask(self.base, "GET", f"/{endpoint}?id={self.number}", **self.headers)
        assert status == 200, answer
        return answer

    def reset(self, **task_options):
        return self.post("reset", id=self.number, **task_options)

    def step(self, action):
        return self.post("step", id=self.number, action=action)

    def close(self):
        self.post("close", id=self.number)


def test_an_episode_is_the_same_as_here(base):
    """An expert's episode through the server: the same texts, rewards and facts as without it."""
    env = gym.make(ALFWORLD, source="generated", split="valid_seen")
    task = env.unwrapped.tasks.ids[3]
    observation, info = env.reset(options={"task": task})
    remote = Remote(base, {"split": "valid_seen"})
    assert remote.tasks == len(env.unwrapped.tasks)
    answer = remote.reset(data_idx=3)
    assert (answer["task"], answer["observation"]) == (task, observation)
    is_over = False
    while not is_over:
        action = env.unwrapped.expert_action()
        observation, reward, terminated, truncated, info = env.step(action)
        answer = remote.step(action)
        is_over = terminated or truncated
        assert answer["observation"] == observation == remote.get("observation")
        assert (answer["reward"], answer["done"]) == (reward, is_over)
        assert answer["facts"] == info["facts"].to_text()
        assert remote.get("available_actions") == list(info["admissible_actions"])
    assert answer["success"] and answer["score"] == 1.0
    status, answer = ask(base, "POST", "/step", {"id": remote.number, "action": "look"})
    assert status == 409 and "ended" in answer["error"]
    assert remote.reset(seed=5)["observation"] == env.reset(seed=5)[0]
    remote.close()


RECORDED = [
    json.loads(line) for line in Path(__file__).with_name("agentgym.jsonl").read_text().splitlines()
]
OPTIONS = {"comap/ScienceWorld-v0": {"task_names": "find-living-thing"}}


@pytest.mark.parametrize("env_id", sorted({line["env"] for line in RECORDED}))
def test_the_clients_of_agentgym(env_id):
    """Their requests, recorded by tests/interop/agentgym.py, get the types that they read, to success.

    Recorded with AgentGym's commit 3ef9235 while its own tasks played.
    """
    if env_id in OPTIONS:
        pytest.importorskip("scienceworld", reason="scienceworld is not installed")
    options = OPTIONS.get(env_id, {"source": "generated"})
    create, *lines, close = (line for line in RECORDED if line["env"] == env_id)
    with (
        Server(agentgym_app(Sessions(Offered([env_id], options)))) as server,
        closing(gym.make(env_id, **options)) as env,
    ):
        env.reset(options={"task": env.unwrapped.tasks.ids[2]})

        def send(line, action=""):
            placeholders = {"ID": created, "ENV_IDX": created, "ACTION": action}
            body = line["body"] and {key: placeholders.get(v, v) for key, v in line["body"].items()}
            query = f"?{line['query']}={created}" if line["query"] else ""
            status, answer = ask(server.base, line["method"], line["path"] + query, body)
            assert status == line["status"], answer
            if isinstance(line["read"], dict):
                assert {key: type(answer[key]).__name__ for key in line["read"]} == line["read"]
            else:
                bare = (
                    [type(part).__name__ for part in answer] if isinstance(answer, list) else None
                )
                assert (bare or type(answer).__name__) == line["read"]
            return answer

        created = None
        answer = send(create)
        created = answer if isinstance(answer, int) else answer["id"]
        assert isinstance(created, str) or created.bit_length() > 90  # not to be guessed
        *before, step = lines
        for line in before:
            send(line)
        is_over = False
        while not is_over:
            action = env.unwrapped.expert_action()
            observation, _, terminated, truncated, info = env.step(action)
            answer, is_over = send(step, action), terminated or truncated
            assert answer["done"] == is_over and observation in (
                answer.get("state"),
                answer.get("observation"),
            )
        best = 100 if "ScienceWorld" in env_id else 1
        assert info["success"] and answer.get("score", answer["reward"]) == best
        send(close)


def test_a_client_that_names_an_environment_gets_the_same_keys_of_each(base):
    created = ask(base, "POST", "/create", {"env": "comap/WebShop-v0"})[1]
    _, answer = ask(base, "POST", "/reset", {"id": created["id"], "data_idx": 1})
    assert answer["id"] == created["id"] and "WebShop" in answer["observation"] and answer["facts"]
    status, answer = ask(base, "POST", "/step", {"env_idx": "9" * 5000, "action": "look"})
    assert status == 404 and "expected the id of an open environment" in answer["error"]
    assert ask(base, "POST", "/close", {"id": created["id"]})[1]["closed"]


def test_many_clients_at_once(base, sessions):
    def play(place):
        remote = Remote(base)
        texts = [remote.reset(data_idx=place % 4)["observation"]]
        for _ in range(5):
            actions = remote.get("available_actions") or [""]
            texts.append(remote.step(actions[place % 3])["observation"])
        remote.close()
        return texts

    with ThreadPoolExecutor(16) as pool:
        played = list(pool.map(play, [*range(12), *range(12)]))
    assert played[:12] == played[12:] and played[0] != played[1]
    assert len(sessions) == 0


def test_a_limit_and_idle_environments():
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
    with sessions.use(second) as env:
        now[0] = 60.0  # in use all the time, however long
        assert sessions.close_idle() == 1
        assert env.reset(seed=0)["step"] == 0
    assert not sessions.close(third) and sessions.close(second) and len(sessions) == 0


def test_clients_that_break_off_do_not_keep_others_out():
    now = [0.0]
    sessions = Sessions(offered(), limit=3, idle=600.0, clock=lambda: now[0])
    names = []
    for second in (0, 10, 20):
        now[0] = second
        names.append(sessions.create()[0])

    now[0] = 29.0  # each may still be in use
    with pytest.raises(Refused, match="fewer than 3"):
        sessions.create()
    now[0] = 31.0
    with sessions.use(names[0]):  # which is used again: the second was unused longest
        pass
    now[0] = 45.0
    fourth, _ = sessions.create()
    with pytest.raises(Refused, match="another client's"), sessions.use(names[1]):
        pass
    for name in (names[0], names[2], fourth):
        with sessions.use(name) as session:
            assert session.reset(seed=0)["step"] == 0
    sessions.close_all()
    assert not sessions.share.crowd("")


def test_a_client_beyond_its_share_gives_up_its_own():
    now = [0.0]
    sessions = Sessions(offered(), limit=4, clock=lambda: now[0], share=1)
    first_of_a, *others = open_as(sessions, "10.0.0.1", "10.0.0.2", "10.0.0.3")
    now[0] = 100.0
    (second_of_c,) = open_as(sessions, "10.0.0.3")
    assert len(sessions) == 3
    for name in (first_of_a, others[0], second_of_c):
        with sessions.use(name):
            pass
    with pytest.raises(Refused), sessions.use(others[1]):
        pass
    sessions.close_all()


def open_as(sessions, *clients):
    """Open an environment for each client."""
    names = []
    for client in clients:
        token = CLIENT.set(client)
        names.append(sessions.create()[0])
        CLIENT.reset(token)
    return names


@pytest.mark.parametrize(
    ("path", "body", "status", "phrase"),
    [
        ("/create", b"{", 400, "expected JSON"),
        ("/create", b"[" * 100_000, 400, "expected JSON"),
        ("/create", [], 422, "expected a JSON object"),
        ("/create", b" " * (MAX_REQUEST_BYTES + 1), 413, "at most"),
        ("/create", {"env": "os:system"}, 404, "expected an environment of this server"),
        ("/create", {"options": {"data_dir": "/etc"}}, 422, "expected options of 'split'"),
        ("/create", {"options": {"split": ["train"]}}, 422, "short text"),
        ("/create", {"options": {"split": "../../etc"}}, 422, "split"),
        ("/reset", {"id": "../x"}, 404, "found '../x'"),
        ("/reset", {"id": 7}, 404, "found 'int'"),
        ("/reset", {"id": "ID", "task": "../../etc/passwd"}, 404, "expected a task"),
        ("/reset", {"id": "ID", "data_idx": -1}, 422, "whole number from 0"),
        ("/reset", {"id": "ID", "seed": -1}, 422, "seed must be a whole number"),
        ("/reset", {"id": "ID", "game": 0, "data_idx": 0}, 422, "expected one of"),
        ("/step", {"id": "ID", "action": "look"}, 409, "reset first"),
        ("/step", {"id": "ID", "action": ["look"]}, 422, "expected 'action'"),
        ("/jump", {}, 404, "POST /step"),
        ("/observation", {}, 405, "expected GET"),
    ],
)
def test_wrong_requests_are_told(path, body, status, phrase, base):
    _, created = ask(base, "POST", "/create", {})
    if isinstance(body, dict) and body.get("id") == "ID":
        body = body | {"id": created["id"]}
    answer_status, answer = ask(base, "POST", path, body)
    assert (
        answer_status == status and phrase in answer["error"] and "Traceback" not in answer["error"]
    )
    assert ask(base, "POST", "/close", {"id": created["id"]})[1]["closed"]


def test_web_pages_are_kept_out(base):
    assert ask(base, "POST", "/create", {}, origin="http://a.example")[0] == 403
    assert ask(base, "GET", "/", host="a.example:80")[0] == 403
    assert ask(base, "POST", "/create", {}, content_type="text/plain")[0] == 415


def test_a_token_is_wanted():
    with Server(agentgym_app(Sessions(offered(), limit=2), token=TOKEN)) as server:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            status, answer = ask(server.base, "POST", "/create", {}, **headers)
            assert status == 401 and TOKEN not in answer["error"]
        assert Remote(server.base, token=TOKEN).reset(seed=0)["step"] == 0


def test_other_machines_need_a_token(monkeypatch, tmp_path):
    monkeypatch.delenv("COMAP_SERVE_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "a.example"):
        with pytest.raises(OptionError, match="token"):
            agentgym_app(Sessions(offered()), host=host)
    with pytest.raises(OptionError, match="16 characters"):
        agentgym_app(Sessions(offered()), token="short")
    words = ["serve", "env", "--env", ALFWORLD, "--port", "0"]
    assert main([*words, "--host", "0.0.0.0", "--no-token"]) == 2
    assert main([*words, "--token-file", str(tmp_path / "none")]) == 2
    assert main([*words, "--allow", "data_dir"]) == 2
    assert main([*words, "--env-option", "split=nowhere"]) == 2
    assert main(["serve", "env", "--env", "CartPole-v1"]) == 2


def test_the_command_serves(tmp_path):
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    words = [sys.executable, "-m", "comap", "serve", "env", "--env", ALFWORLD, "--port", "0"]
    words += ["--token-file", str(token), "--env-option", "source=generated"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving http://127.0.0.1:") and TOKEN not in line
        assert process.stdout.readline() == f"{ALFWORLD}: 3,553 generated tasks\n"
        remote = Remote(line.split()[1], token=TOKEN)
        assert remote.reset(data_idx=0)["task"].startswith("generated/")
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize(
    "option_value", ["http://127.0.0.1:9/retrieve", "/etc", "..\\up", "host:80"]
)
def test_no_client_names_a_place_or_an_address(option_value):
    """An allowed option may be a word or an address: the address is not a client's to choose."""
    searchqa = Offered(["comap/SearchQA-v0"], {"source": "generated"}, ["retriever"])
    with pytest.raises(OptionError, match="a place or an address"):
        searchqa.make(None, {"retriever": option_value})
    searchqa.make(None, {"retriever": "auto"}).close()
