"""Suffix rollouts: how an episode would end after this action, and how after that (METHODS.md 1.6).

An episode is brought to some moment; there one action is taken, and a continuation policy plays on to
the end; then the same from the same moment with another action. What differs is the actions' doing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import Agent
from ..agents.answers import Answers
from ..agents.records import writing
from ..agents.rounds import play_rounds
from ..agents.run_description import Run
from ..agents.runner import check_live, player_for
from ..agents.stage import Stage
from ..agents.theatre import Theatre
from ..agents.thinking import Playing
from ..lm import LanguageModel
from .suffix_play import Branch, Outcome, Unit, play_unit, units_of
from .suffix_record import SuffixRecord, recording

__all__ = ["Branch", "Outcome", "suffix_outcomes"]


def suffix_outcomes(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    branches: Sequence[Branch],
    *,
    lm: LanguageModel | None = None,
    live: int = 32,
    folder: str | Path | None = None,
    on_done: Callable[[list[Outcome]], object] | None = None,
) -> list[Outcome]:
    """Play branches, many at once, and return what came of each, in their order.

    Branches of one task, prefix and seed are played one after another in one environment, which is
    brought back to the moment where they part: each has the same rest of the step limit. Equal
    branches are played once. The agent sees the whole episode from the task's start and remembers
    nothing of it, so that a conversation shows the actions before the moment alone.

    Args:
        make_env: Makes a real environment; called once for each unit that runs at the same time.
        agent: The continuation policy. METHODS.md 1.6 has the warm-up draft policy, greedy: a
            `ReActAgent` with ``temperature=0``.
        branches: What to play.
        lm: Answers the agent's requests.
        live: How many units run at the same time, at most; results do not depend on it.
        folder: Where to record outcomes as they come; None for nowhere. A folder with the beginning
            of the same rollouts is gone on with: a kill at any moment loses what was running.
        on_done: Told the outcomes of each unit as it ends.

    Returns:
        The outcomes. A fault (of the agent, the engine or a model, or a prefix that does not fit) is
        recorded in the outcomes that it concerns.

    Raises:
        OptionError: An option cannot be, the agent needs a language model that can do what this one
            cannot, the environment is imagined, or the folder is of other rollouts, in use by another
            process or cannot be written.
        DataCorrupt: The folder's files are not what they should be.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=8)
        >>> task = make_env().unwrapped.tasks.ids[0]
        >>> branches = [Branch(task, ("look",), action, 0) for action in ("look", "inventory")]
        >>> [found.error for found in suffix_outcomes(make_env, ExpertAgent(), branches)]
        [None, None]
    """
    check_live(live)
    player = player_for(agent, lm)

    def play(stage: Stage, unit: Unit) -> Playing[dict[str, Outcome]]:
        return play_unit(player, stage, unit)

    found: dict[Branch, Outcome] = {}
    record: SuffixRecord | None = None
    with ExitStack() as stack:
        if folder is not None:
            described = _described(make_env, agent, branches, lm)
            record = stack.enter_context(recording(Path(folder), described, live))
            found |= record.known
        while rest := units_of(branch for branch in branches if branch not in found):
            rounds = play_rounds(Theatre(make_env), Answers(lm), rest, live, play)
            stack.enter_context(closing(rounds))
            for number, outcomes in rounds:
                unit = rest[number]
                found |= {unit.branch(action): one for action, one in outcomes.items()}
                if record is not None:
                    with writing(Path(folder or "")):
                        record.add(unit, outcomes)
                if on_done is not None:
                    on_done(list(outcomes.values()))
    return [found[branch] for branch in branches]


def _described(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    branches: Sequence[Branch],
    lm: LanguageModel | None,
) -> dict[str, Any]:
    """Return what is asked, with what, as plain data: rollouts that agree in it end the same."""
    parts = sorted({(one.task, one.prefix, one.action, one.seed) for one in branches})
    digest = hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()
    config = {"branches": len(parts), "branches_sha256": digest}
    tasks = tuple(sorted({branch.task for branch in branches}))
    return Run(make_env=make_env, agent=agent, tasks=tasks, lm=lm, config=config).describe()
