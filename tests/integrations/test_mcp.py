"""The official client of the package ``mcp`` plays whole episodes, over HTTP and over stdio."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import comap
from comap.benchmarks.verify import verify
from comap.errors import OptionError
from comap.integrations import Offered
from comap.integrations.mcp import EpisodeTools, http_app
from comap.integrations.recording import Recording
from comap.trajectory import Trajectory, read_trajectories
from kits.mcp_client import McpSession, http_session, stdio_session
from kits.serving import served

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")

TOOLS, ALFWORLD = "comap/StableToolBench-v0", "comap/ALFWorld-v0"
GENERATED = {"source": "generated"}
TOKEN = "a-token-of-some-length"
ROOT = Path(comap.__file__).parent.parent


def ask(url, talk, token=TOKEN):
    """Connect the official client to a server and let it talk."""

    async def run():
        async with http_session(url, token) as session:
            await session.initialize()
            return await talk(session)

    return asyncio.run(run())


async def play(session, task):
    """Play a task of StableToolBench with the expert's calls; what tools said, and the last answer."""
    twin = gym.make(TOOLS, **GENERATED)
    twin.reset(options={"task": task})
    last = await session.call_tool("reset", {"task": task})
    names = [tool["name"] for tool in await session.list_tools()]
    functions = {function["name"]: function for function in twin.unwrapped.functions}
    assert names == ["reset", "observe", *functions]
    texts, is_over = [text_of(last)], False
    while not is_over:
        call = json.loads(twin.unwrapped.expert_action())
        observation, *_ = twin.step(json.dumps(call))
        last = await session.call_tool(call["name"], call["arguments"])
        assert not last["isError"] and text_of(last) == observation
        texts.append(observation)
        is_over = last["structuredContent"]["done"]
    return texts, state_of(last)


def state_of(result):
    """How the episode stands, which a host does not show the model."""
    hidden = {"score", "success", "facts", "reward", "task", "goal"}
    state = result["_meta"]["comap/state"]
    assert hidden <= state.keys() and not hidden & result["structuredContent"].keys()
    return state


def text_of(result):
    return result["content"][0]["text"]


@pytest.fixture(scope="module")
def tools():
    with served(http_app(Offered([TOOLS], GENERATED), host="127.0.0.1", token=TOKEN)) as base:
        yield f"{base}/mcp"


def test_the_official_client_solves_tasks(tools):
    """A whole episode, tool by tool, with their schemas; then another one with other tools."""

    async def talk(session):
        listed = {tool["name"]: tool for tool in await session.list_tools()}
        first = state_of(await session.call_tool("observe", {}))
        twin = gym.make(TOOLS, **GENERATED)
        twin.reset(options={"task": first["task"]})
        for schema in twin.unwrapped.functions:  # an episode runs from the start
            assert listed[schema["name"]]["inputSchema"] == schema["parameters"]
            assert listed[schema["name"]]["description"] == schema["description"]
        for task in ("generated/train/3", "generated/train/30"):
            texts, state = await play(session, task)
            assert state["success"] and state["score"] == 1.0 and state["task"] == task
            assert texts[0].startswith("Task: ") and len(texts) >= 3
        over = await session.call_tool("Finish", {"return_type": "give_up_and_restart"})
        assert over["isError"] and "reset" in text_of(over)

    ask(tools, talk)


def test_what_is_wrong_is_told_to_the_model(tools):
    async def talk(session):
        cases = [
            ("nothing", {}, "expected one of the tools"),
            ("act", {"action": "look"}, "expected one of the tools"),
            ("reset", {"task": "../../etc/passwd"}, "expected a task"),
            ("reset", {"data_idx": -1}, "whole number"),
            ("reset", {"seed": "x"}, "whole number"),
            ("reset", {"split": "train"}, "expected task, data_idx or seed"),
        ]
        await session.list_tools()
        for name, arguments, phrase in cases:
            result = await session.call_tool(name, arguments)
            assert result["isError"] and phrase in text_of(result)
            assert "Traceback" not in text_of(result)
        # The environment's own answer.
        result = await session.call_tool("Finish", {"return_type": 3})
        assert not result["isError"] and result["structuredContent"]["invalid_action"]

    ask(tools, talk)


def test_a_session_for_each_call_is_refused(tools):
    """LangChain's tools open one by default: each call would be the first step of a new episode."""

    async def start(session):
        return await session.call_tool("reset", {"data_idx": 0})

    async def act(session):
        return await session.call_tool("Finish", {"return_type": "give_up_and_restart"})

    async def observe(session):
        return await session.call_tool("observe", {})

    assert not ask(tools, start)["isError"]
    for talk in (act, observe):
        result = ask(tools, talk)
        assert result["isError"] and "another session" in text_of(result)


def test_versions_without_sessions_are_refused(tools):
    """mcp 2's newer client asks for one of them first; it reads here that it must open a session."""
    import httpx

    message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}
    headers = {
        "authorization": f"Bearer {TOKEN}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
    }
    with httpx.Client(trust_env=False, timeout=20) as client:
        response = client.post(tools, json=message, headers=headers)
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == -32022
    assert "2025-06-18" in error["data"]["supported"]


def test_the_newer_client_opens_a_session(tools):
    mcp = pytest.importorskip("mcp")
    if not hasattr(mcp, "Client"):
        pytest.skip("mcp 1 has no such client")
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def run():
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http,
            mcp.Client(streamable_http_client(tools, http_client=http)) as client,
        ):
            assert "session" in client.instructions
            return (await play(McpSession(client), "generated/train/3"))[1]

    assert asyncio.run(run())["success"]


def post(url, body, **headers):
    import httpx

    extra_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    default_headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    with httpx.Client(trust_env=False, timeout=20) as client:
        response = client.post(url, content=body, headers=default_headers | extra_headers)
        assert "Traceback" not in response.text and TOKEN not in response.text
        return response.status_code


def test_requests_are_checked(tools):
    right = {"authorization": f"Bearer {TOKEN}"}
    assert post(tools, b"{}") == 401
    assert post(tools, b"{}", authorization="Bearer wrong") == 401
    assert post(tools, b"{", **right) == 400
    assert post(tools, b" " * (2**20 + 1), **right) == 413
    assert post(tools, b"{}", origin="http://a.example", **right) == 403
    assert post(tools, b"{}", host="a.example", **right) == 403
    assert post(tools, b"{}", mcp_session_id="nobody", **right) == 404
    with pytest.raises(OptionError, match="token"):
        http_app(Offered([TOOLS]), host="0.0.0.0")


def test_other_environments_have_one_tool():
    tools = EpisodeTools(Offered([ALFWORLD], GENERATED | {"split": "valid_seen"}))
    assert [tool["name"] for tool in tools.listed()] == ["reset", "observe", "act"]
    assert "Your task is to" in tools.call("observe", {}).text
    message = tools.call("reset", {"seed": 3}).message
    env = gym.make(ALFWORLD, split="valid_seen", **GENERATED)
    observation, _ = env.reset(seed=3)
    assert message is not None and message["observation"] == observation
    assert tools.call("act", {"action": 3}).shown is None
    while not message["done"]:
        message = tools.call("act", {"action": env.unwrapped.expert_action()}).message
        env.step(env.unwrapped.expert_action())
    assert message["success"]
    tools.close()


def test_a_client_at_standard_input_and_output():
    """The command as an MCP host starts it; the official client finds its tools and plays."""
    words = ["-m", "comap", "serve", "env", "--env", TOOLS, "--style", "mcp", "--stdio"]
    words += ["--env-option", "source=generated"]

    async def run():
        async with stdio_session(sys.executable, words, ROOT) as session:
            server_info = await session.initialize()
            assert server_info["serverInfo"]["name"] == "comap"
            assert server_info["capabilities"]["tools"]["listChanged"]
            assert "session" in server_info["instructions"]
            assert (await play(session, "generated/train/7"))[1]["success"]

    asyncio.run(run())


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a", "version": "1"},
    },
}


def test_clients_that_break_off_do_not_keep_others_out(monkeypatch):
    """Where all sessions are open, the one that was unused longest ends for a new one."""
    import httpx

    app = http_app(Offered([TOOLS], GENERATED), host="127.0.0.1", token=TOKEN, limit=2)
    headers = {
        "authorization": f"Bearer {TOKEN}",
        "accept": "application/json, text/event-stream",
    }
    with served(app) as base, httpx.Client(headers=headers, trust_env=False, timeout=20) as client:

        def hello():
            response = client.post(f"{base}/mcp", json=HELLO)
            return response.status_code, response.headers.get("mcp-session-id", "")

        def list_tools(session_id):
            message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            session_header = {"mcp-session-id": session_id}
            client.post(f"{base}/mcp", json=message, headers=session_header)
            message = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            return client.post(f"{base}/mcp", json=message, headers=session_header).status_code

        first, second = hello()[1], hello()[1]
        assert list_tools(first) == list_tools(second) == 200
        assert hello()[0] == 503  # both may still be in use

        monkeypatch.setattr("comap.integrations.mcp.SPARED", 0.0)
        assert list_tools(first) == 200
        status, third = hello()
        assert status == 200 and list_tools(third) == 200
        assert list_tools(second) == 404 and list_tools(first) == 200

        # One that ended by itself leaves room, and is not looked for again.
        client.delete(f"{base}/mcp", headers={"mcp-session-id": first})
        assert hello()[0] == 200 and list_tools(third) == 200


def test_episodes_of_several_clients_are_recorded(tmp_path):
    """Each of them as it ended, by whom it was played; also that of a client which breaks off."""
    offered = Offered([TOOLS], GENERATED)
    with Recording(tmp_path, offered, agent="clients") as recording:
        app = http_app(offered, host="127.0.0.1", token=TOKEN, recording=recording)
        with served(app) as base:
            url = f"{base}/mcp"

            async def run():
                async with (
                    http_session(url, TOKEN) as first,
                    http_session(url, TOKEN) as second,
                ):
                    for session in (first, second):
                        await session.initialize()
                    await asyncio.gather(
                        play(first, "generated/train/3"), play(second, "generated/train/30")
                    )
                    await first.call_tool("reset", {"task": "generated/train/4"})

            asyncio.run(run())

            async def look_on(session):
                await session.call_tool("reset", {"task": "generated/train/5"})
                assert len(list((tmp_path / "unfinished").iterdir())) == 1
                raise ConnectionError("the client dies")

            with pytest.raises((ConnectionError, ExceptionGroup)):
                ask(url, look_on)

    episodes = {
        episode.task: episode for episode in read_trajectories(tmp_path / "trajectories.jsonl")
    }
    assert [len(episodes), *map(type, episodes.values())] == [4, *[Trajectory] * 4]
    for task in ("generated/train/3", "generated/train/30"):
        assert episodes[task].success and episodes[task].error is None
        assert episodes[task].agent == "clients" and episodes[task].settings["client"].split()
    for task in ("generated/train/4", "generated/train/5"):
        assert not episodes[task].steps and "after 0 steps" in episodes[task].error
    result = verify(tmp_path, sample=0)
    assert result["agree"] and result["counts"] == {"agrees": 4}


def test_a_client_at_standard_input_and_output_is_recorded(tmp_path):
    words = ["-m", "comap", "serve", "env", "--env", TOOLS, "--style", "mcp", "--stdio"]
    words += ["--env-option", "source=generated", "--record", str(tmp_path), "--agent", "host"]

    async def run():
        async with stdio_session(sys.executable, words, ROOT) as session:
            await session.initialize()
            assert (await play(session, "generated/train/7"))[1]["success"]
            await session.call_tool("reset", {})

    for _ in range(2):  # the second server goes on with the folder
        asyncio.run(run())
    episodes = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    assert [episode.success for episode in episodes] == [True, False, True, False]
    assert [episode.agent for episode in episodes] == ["host"] * 4
    assert [episode.trial for episode in episodes] == [1, 1, 1, 1]
    assert episodes[0].task == episodes[2].task and (episodes[0].seed, episodes[2].seed) == (0, 1)
    assert verify(tmp_path, sample=0)["agree"]


def test_a_server_that_is_stopped_has_recorded_everything(tmp_path):
    """SIGTERM, as of `docker stop`, ends the episodes; a summary is there at each moment."""
    words = ["serve", "env", "--env", ALFWORLD, "--style", "mcp", "--port", "0", "--no-token"]
    words += ["--env-option", "source=generated", "--record", str(tmp_path)]
    server = subprocess.Popen(
        [sys.executable, "-m", "comap", *words], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8"
    )
    try:
        url = server.stdout.readline().split()[1]

        async def act(session):
            await session.call_tool("reset", {"data_idx": 0})
            await session.call_tool("act", {"action": "look"})
            server.terminate()
            await asyncio.to_thread(server.wait, 60)

        ask(url, act)
    finally:
        server.kill()
        server.communicate()
    assert server.returncode == -signal.SIGTERM
    (episode,) = read_trajectories(tmp_path / "trajectories.jsonl")
    assert episode.error == "Interrupted: the server was stopped after 1 step"
    assert verify(tmp_path, sample=0)["agree"]


def test_one_episode_is_shared_by_all_clients(tmp_path):
    """A client that connects again goes on; what could tell it how far it is, is not there."""
    offered = Offered([ALFWORLD], GENERATED)
    task = "generated/train/normal/0-000003"
    with Recording(tmp_path, offered) as recording:
        app = http_app(offered, host="127.0.0.1", token=TOKEN, recording=recording, task=task)
        with served(app) as base:

            async def act(session):
                assert [tool["name"] for tool in await session.list_tools()] == ["observe", "act"]
                result = await session.call_tool("act", {"action": "inventory"})
                assert not result["isError"] and not result.get("_meta")
                assert not {"score", "reward", "facts"} & result["structuredContent"].keys()
                assert (await session.call_tool("reset", {}))["isError"]

            for _ in range(3):
                ask(f"{base}/mcp", act)
    (episode,) = read_trajectories(tmp_path / "trajectories.jsonl")
    assert episode.task == task and len(episode.steps) == 3
    assert episode.error == "Interrupted: the server was stopped after 3 steps"


def test_a_private_network_needs_no_token():
    with pytest.raises(OptionError, match="token"):
        http_app(Offered([TOOLS]), host="0.0.0.0")
    assert http_app(Offered([TOOLS]), host="0.0.0.0", is_private=True) is not None
