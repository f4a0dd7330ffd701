"""AgentGym's own tasks and clients play comap's environments through ``comap serve env``.

Run it with a Python that has comap and what agentenv needs (transformers, openai, requests), and with
AgentGym's folder ``agentenv`` on PYTHONPATH; pip has no agentenv:

    PYTHONPATH=AgentGym/agentenv python tests/interop/agentgym.py [--record FILE]

An expert's replies stand in for a language model's: each episode must end with the score of a success.
``--record`` writes the requests, and the types of what is read of the answers, which tests/integrations
replays.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import gymnasium as gym
import requests
from agentenv.controller import APIAgent, Evaluator
from agentenv.envs import AlfWorldTask, SciworldTask, SearchQATask, WebshopTask

import comap  # noqa: F401 (registers the environments)
from comap.envs.http import Server
from comap.integrations import Offered, Sessions
from comap.integrations.agentgym import agentgym_app

TASKS = {
    "comap/ALFWorld-v0": (AlfWorldTask, {"source": "generated"}, 1.0),
    "comap/WebShop-v0": (WebshopTask, {"source": "generated"}, 1.0),
    "comap/ScienceWorld-v0": (SciworldTask, {"task_names": "find-living-thing"}, 100.0),
    "comap/SearchQA-v0": (SearchQATask, {"source": "generated"}, 1.0),
}
INDEX = 2


class Expert(APIAgent):
    """Writes what an expert does in the same task, in the form that the client reads."""

    def __init__(self, env):
        self.env, self.episode = env, None

    def generate(self, messages):
        if self.episode is None:
            self.episode = self.env.reset(options={"task": self.env.unwrapped.tasks.ids[INDEX]})
        action = self.env.unwrapped.expert_action()
        self.episode = self.env.step(action)
        whole = action.startswith("<")  # search QA's client sends a reply as it is
        return action if whole else f"Thought:\nI know.\n\nAction:\n{action}", None


class Answer(dict):
    """An answer that notes which of its keys are read."""

    def __init__(self, data):
        super().__init__(data)
        self.read = {}

    def __getitem__(self, key):
        self.read[key] = type(super().__getitem__(key)).__name__
        return super().__getitem__(key)


def types_of(answer):
    """Return the type of an answer; for an object the types of the keys that were read."""
    if isinstance(answer, list):
        return [type(part).__name__ for part in answer]
    return answer.read if isinstance(answer, Answer) else type(answer).__name__


def play(env_id, record):
    """Let a real task and its client play one episode; return its reward."""
    task, options, _ = TASKS[env_id]

    def noted(ask):
        def asking(url, **request_options):
            answer = ask(url, **request_options)
            data = answer.json()
            data = Answer(data) if isinstance(data, dict) else data
            answer.json = lambda: data
            parts, body = urlsplit(url), dict(request_options.get("json") or {})
            line = {"env": env_id, "method": ask.__name__.upper(), "path": parts.path}
            line["query"] = parts.query.partition("=")[0] or None
            # Ids and actions are others each time. SearchQA's key "id" is a task's number.
            changing = {"env_idx", "action"} if "env_idx" in body else {"id", "action"}
            body |= {key: key.upper() for key in changing & body.keys() if parts.path != "/create"}
            line["body"] = body if "json" in request_options else None
            record.append((line, answer.status_code, data))
            return answer

        return asking

    get, post = requests.get, requests.post
    requests.get, requests.post = noted(get), noted(post)
    try:
        with (
            Server(agentgym_app(Sessions(Offered([env_id], options)))) as server,
            closing(gym.make(env_id, **options)) as env,
        ):
            size = len(env.unwrapped.tasks)
            played = task({"env_server_base": server.base, "data_len": size}, n_clients=1)
            evaluation = Evaluator(Expert(env), [played]).eval(max_rounds=60, idxs=[[INDEX]])
            played.clients[0].close()
            assert len(played.clients[0]) == size and evaluation.success == 1.0
            return evaluation.score
    finally:
        requests.get, requests.post = get, post


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    record = []
    for env_id, (task, _, best) in TASKS.items():
        score = play(env_id, record)
        assert score == best, f"{task.__name__}: expected {best}, found {score}"
        print(f"{task.__name__} against {env_id}: {score:g}")
    if options.record is not None:
        parts = [line | {"status": code, "read": types_of(data)} for line, code, data in record]
        lines = dict.fromkeys(map(json.dumps, parts))  # each kind of request once
        options.record.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
