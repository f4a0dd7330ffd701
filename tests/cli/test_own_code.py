"""One's own environment, agent and world model, named on the command line as MODULE:NAME."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import pytest

from comap.cli import main
from comap.cli.main import understood
from comap.errors import OptionError
from comap.integrations import Offered
from comap.integrations.trl import environment_factory, task_rows
from kits.commands import episodes, say

MODULE = '''
import gymnasium
from comap.agents import Decision, Imagine, ReActAgent
from comap.envs import Outcome, Panel, TextEnv
from comap.integrations.adapter import PatternCanonicalizer, Wording, adapt
from comap.worldmodel import Prediction

LAMPS = ("light a", "light b")

class Lamps(TextEnv):
    """Two lamps to light."""

    env_id = "own/Lamps-v0"
    canonicalizer = PatternCanonicalizer({r"Lit (\\w)": "lit({1})", "Dark": ()})

    def __init__(self, *, split="all", **common):
        super().__init__(**common)

    @property
    def tasks(self):
        return Panel.of(["all/1", "all/2"], "all", ["all"])

    def _open(self, task):
        self.lit = frozenset()
        return "all", "Light both.", Outcome("Dark.", admissible=LAMPS)

    def _act(self, action):
        self.lit = self.lit | {action[-1]}
        done = self.lit >= set("ab")
        return Outcome(f"Lit {action[-1]}", float(done), 0.5, done, done, admissible=LAMPS)

    def expert_action(self):
        return LAMPS[len(self.lit)] if len(self.lit) < 2 else None

    def _save(self):
        return tuple(self.lit)

    def _load(self, saved):
        self.lit = frozenset(saved)
        return LAMPS

def lake(**common):
    ways = ["left", "down", "right", "up"]
    words = Wording(observe=lambda cell: f"cell {cell}", act=ways.index, admissible=lambda *_: ways)
    table = {r"cell \\d+": ["-at(agent, *)", "at(agent, {0})"]}
    return adapt(gymnasium.make("FrozenLake-v1", is_slippery=False), table, words, **common)

for name, made in {"own/Lamps-v0": Lamps, "own/Lake-v0": lake}.items():
    gymnasium.register(name, made, max_episode_steps=4, disable_env_checker=True)

class Curious:
    """Imagines all actions.

    Args:
        turn: Which it takes first.
    """

    name = "curious"

    def __init__(self, turn=0):
        self.turn = turn

    def decide(self, view):
        imagined = yield [Imagine(action) for action in LAMPS]
        said = [one.observation for one in imagined]
        return Decision(LAMPS[(view.step + self.turn) % 2], notes={"said": said})

class Loud(ReActAgent):
    """ReAct by another name."""

    name = "loud"

class Foresees:
    def __init__(self, word="Lit"):
        self.word = word

    def predict(self, queries):
        return [Prediction(f"{self.word} {query.action[-1]}") for query in queries]

class NoAgent:
    pass

def brightness(episode):
    return [step.reward + 1 for step in episode.steps]

def darkness(episode):
    return [-step.reward for step in episode.steps]
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module in the working directory, which is not on the path yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    yield name
    sys.modules.pop(name, None)
    for env_id in ("own/Lamps-v0", "own/Lake-v0"):
        gymnasium.registry.pop(env_id, None)


@pytest.mark.parametrize("env", ["own/Lamps-v0", "own/Lake-v0"])
def test_ones_own_environment_is_played_and_verified(module, env, capsys, monkeypatch):
    words = [
        "run",
        "--env",
        f"{module}:{env}",
        "--agent",
        "random",
        "--out",
        "run",
        "--episodes",
        "2",
    ]
    assert main(words) == 0
    assert {episode.env_id for episode in episodes(Path("run"))} == {env}
    assert main(["verify", "run"]) == 0, "its module is imported in this process"
    for name in ("own/Lamps-v0", "own/Lake-v0"):
        gymnasium.registry.pop(name)
    del sys.modules[module]
    code, printed, _ = say("envs", f"{module}:{env}")
    assert code == 0 and "splits:\n" in printed and "max_text_length" in printed
    hint = printed.strip().rpartition("to play it: comap ")[2]
    monkeypatch.setattr("builtins.input", lambda prompt: "quit")
    assert main(hint.split()) == 0
    for name in ("own/Lamps-v0", "own/Lake-v0"):
        gymnasium.registry.pop(name)
    del sys.modules[module]
    code, printed, _ = say("verify", "run")
    assert code == 3 and f"--env {module}:{env}" in printed, "a record imports nothing by itself"
    assert main(["verify", "run", "--env", f"{module}:{env}"]) == 0


def test_the_working_directory_is_searched_only_for_ones_own_code(module):
    before = list(sys.path)
    assert say("run", "--agent", "random", "--world-model", "null", "--tasks", "none")[0] == 2
    assert sys.path == before
    assert say("run", "--agent", f"{module}:Curious", "--help")[0] == 0
    assert sys.path == [*before, str(Path.cwd())]


def test_ones_own_agent_asks_ones_own_world_model(module, capsys):
    words = ["--env", f"{module}:own/Lamps-v0", "--world-model", f"{module}:Foresees"]
    words += ["--world-model-option", "word=Dark"]
    agent = ["run", "--agent", f"{module}:Curious", "--agent-option", "turn=1", *words]
    assert main([*agent, "--out", "run"]) == 0
    steps = [step for episode in episodes(Path("run")) for step in episode.steps]
    assert [step.action for step in steps] == ["light b", "light a"] * 2
    assert {tuple(step.notes["said"]) for step in steps} == {("Dark a", "Dark b")}
    record = json.loads(Path("run", "run.json").read_text())
    assert record["config"]["world_model"] == f"{module}:Foresees word=Dark"
    assert main([*agent, "--imagined"]) == 0 and Path("runs", "Curious").is_dir()
    assert {t.world_model for t in episodes(Path("runs", "Curious"))} == {"Foresees"}
    help_text = " ".join(say("run", "--agent", f"{module}:Curious", "--help")[1].split())
    assert "turn (Which it takes first)" in help_text
    assert "--decoding NAME" in say("run", "--agent", f"{module}:Loud", "--help")[1]


def test_ones_own_world_model_is_scored(module, capsys):
    words = ["score", "world-model", "--env", f"{module}:own/Lamps-v0", "--world-model"]
    assert (
        main([*words, f"{module}:Foresees", "--samples", "4", "--save-transitions", "some.jsonl"])
        == 0
    )
    assert main([*words, "null", "--transitions", "some.jsonl", "--out", "null.json"]) == 0
    scores = json.loads(Path("null.json").read_text())["scores"]
    assert scores["n"] == 4 and scores["nonempty"]["delta_f1"] == 0


def test_one_s_own_reward_trains_on_one_s_own_environment(module, capsys):
    words = ["train", "paw", "--preset", "tiny", "--env", f"{module}:own/Lamps-v0", "--out", "out"]
    words += ["--tiny-parameters", "200000", "--updates", "1", "--groups", "1", "--members", "2"]
    words += ["--train-split", "all", "--evaluation-tasks", "0", "--warmup-tokens", "2000"]
    words += ["--max-episode-steps", "2", "--reward"]
    code, _, errors = say(*words, f"{module}:brightnes")
    assert code == 2 and "no attribute 'brightnes'" in errors and not Path("out").exists()
    code, _, errors = say(*words, f"{module}:brightness")
    assert code == 0, errors
    described = json.loads(Path("out", "run.json").read_text())["described"]
    assert described["config"]["reward"] == f"{module}:brightness"
    from_config = understood(["train", "paw", "--config", "out/run.json", "--out", "out"])
    assert from_config == understood([*words, f"{module}:brightness"])
    (line,) = map(json.loads, Path("out", "metrics.jsonl").read_text().splitlines())
    assert line["return"] >= 2, "each of two steps counts 1 beside the environment's reward"
    code, _, errors = say(*words, f"{module}:darkness")
    assert code == 2 and "darkness" in errors


def test_other_stacks_import_it_too(module):
    env_id = f"{module}:own/Lamps-v0"
    environment = environment_factory(env_id)()
    assert environment.reset(**task_rows(env_id, 1)[0]).startswith("Dark.")
    assert type(environment).__name__ == "Lamps"
    assert environment.act("light a") == "Lit a\n\nAvailable actions: light a; light b"
    offered = Offered([env_id, f"{module}:own/Lake-v0"])
    assert offered.env_ids == ("own/Lamps-v0", "own/Lake-v0")
    assert offered.make("own/Lake-v0").reset(seed=0)[0] == "cell 0"
    gymnasium.register("own/Pole-v0", lambda: gymnasium.make("CartPole-v1"))
    with pytest.raises(OptionError, match=r"integrations\.adapter\.adapt"):
        Offered(["own/Pole-v0"]).make()
    gymnasium.registry.pop("own/Pole-v0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--agent OWN:Curios", "no attribute 'Curios'"),
        ("--agent OWN:NoAgent", "expected an agent, with 'name' and 'decide'"),
        ("--agent OWN:LAMPS", "found tuple"),
        ("--agent nowhere_to_be_found:Agent", "PYTHONPATH"),
        ("--agent random --world-model OWN:Foresee", "no attribute 'Foresee'"),
        ("--agent random --world-model OWN:Foresees --world-model-option size=3", "'size'"),
        ("--agent random --env OWN:own/Lamp-v0", "Lamps-v0'?"),
        ("--agent random --env BROKEN:own/X-v0", "SyntaxError"),
    ],
)
def test_what_is_not_there_is_told(module, words, message):
    Path(f"broken_{module}.py").write_text("def (")
    words = words.replace("OWN", module).replace("BROKEN", f"broken_{module}")
    code, _, errors = say("run", *words.split())
    assert code in (1, 2) and message in errors and len(errors.splitlines()) == 1


FAULTY = """
from comap.agents import Decision
from comap.errors import LanguageModelError

class Divides:
    name = "divides"

    def decide(self, view):
        yield []
        return Decision(str(1 / 0))

class Returns:
    name = "returns"

    def decide(self, view):
        return "look"

class Forgets:
    name = "forgets"

    def decide(self, view):
        yield []

class Waits:
    name = "waits"

    def decide(self, view):
        yield []
        raise LanguageModelError("the server is busy")

class Looks:
    def predict(self, queries):
        return [queries["first"] for query in queries]
"""


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"faulty_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FAULTY)
    yield name
    sys.modules.pop(name, None)


def play_faulty(*words):
    small = ["--env-option", "source=generated", "--episodes", "2", "--max-episode-steps", "2"]
    code, out, err = say(*words, *small)
    return code, " ".join(out.split()), err


@pytest.mark.parametrize(
    ("agent", "line", "message"),
    [
        ("Divides", 10, "division by zero"),
        ("Returns", 15, "write `yield from ()` before its return"),
        ("Forgets", 21, "return Decision(ACTION)"),
    ],
)
def test_a_fault_of_ones_own_agent_names_its_line_and_advises_no_retry(
    faulty, agent, line, message
):
    code, out, _ = play_faulty("run", "--agent", f"{faulty}:{agent}", "--out", "run")
    assert code == 3 and message in out and f"({faulty}.py, line {line}, in decide)" in out
    assert "mend the code" in out and "--retry-failed" not in out


def test_a_fault_of_a_server_may_pass(faulty):
    code, out, _ = play_faulty("run", "--agent", f"{faulty}:Waits", "--out", "run")
    assert code == 3 and "the server is busy" in out and f"{faulty}.py" not in out
    assert "--retry-failed" in out and "mend the code" not in out


def test_tracebacks_of_faults_in_episodes_are_printed_once_where_asked(faulty):
    words = ("run", "--agent", f"{faulty}:Divides", "--out")
    assert "Traceback" not in play_faulty(*words, "quiet")[2]
    err = play_faulty("--traceback", *words, "loud")[2]
    assert err.count("Traceback") == 1 and f'{faulty}.py", line 10, in decide' in err
    assert "Traceback" not in play_faulty(*words, "quiet again")[2]


def test_ones_own_world_model_that_raises_is_named(faulty):
    words = ["--world-model", f"{faulty}:Looks"]
    _, out, _ = play_faulty("run", "--agent", "random", "--imagined", *words, "--out", "run")
    assert "TypeError" in out and f"({faulty}.py, line 33, in" in out
    code, _, err = say("score", "world-model", "--samples", "4", *words)
    assert code == 1 and f"({faulty}.py, line 33, in" in err and "internal error" not in err
    assert len(err.splitlines()) == 1


def test_a_java_that_is_none_is_refused_before_play(tmp_path, monkeypatch):
    pytest.importorskip("scienceworld")
    monkeypatch.chdir(tmp_path)
    words = ["run", "--agent", "random", "--env", "comap/ScienceWorld-v0", "--episodes", "1"]
    code, out, err = say(*words, "--env-option", "java=/nojava", "--out", "run")
    assert code == 2 and "neither the program java" in err and "success" not in out
