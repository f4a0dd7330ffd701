"""The demo's learned agent: CoMap with the small models that comap ships, beside their bare policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import gymnasium

from ..agents.config import AgentConfig
from ..agents.create import create_agent
from ..agents.runner import run_episodes
from ..envs.panel import evenly
from ..errors import DataNotFound
from ..lm.create import create_language_model
from ..lm.shipped import SHIPPED, Shipped, check_packages, shipped
from ..metrics import Rate, goal_condition_success, success_rate
from ..trajectory import Trajectory
from ..worldmodel.language import LanguageWorldModel
from .run_models import hush
from .tables import Table

__all__ = ["MOST", "Learned", "chosen", "learned_models", "learned_table", "play_learned"]

MOST = 8
"""The most tasks that each agent plays: less than half a minute of one core's work."""

_NAMES = {"comap": "CoMap, with its own world model", "react": "ReAct, the same policy"}


@dataclass(frozen=True, slots=True)
class Learned:
    """How one agent did.

    Attributes:
        agent: Its name, as `create_agent` knows it.
        success: Its success rate.
        score: Mean share of goal conditions reached, 0 to 1.
        steps: Mean number of steps of an episode.
        reflected: Decisions with a reflection.
        revised: How many of them took another action than the draft.
        failed: Episodes that a fault ended.

    Example:
        >>> Learned("react", success_rate([True]), 1.0, 12.0, 0, 0, 0).success.value
        1.0
    """

    agent: str
    success: Rate
    score: float
    steps: float
    reflected: int
    revised: int
    failed: int


def learned_models(env_id: str) -> Shipped:
    """Return the models that comap ships for an environment, if they can be used here.

    Raises:
        DataNotFound: There are none.
        DataCorrupt: A file of theirs is damaged.
        MissingExtra: The packages that they run on are missing.

    Example:
        >>> learned_models("comap/Nowhere-v0")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected models that comap ships for comap/Nowhere-v0, found \
none; give a model of yours to comap run (--model)
    """
    if env_id not in SHIPPED:
        raise DataNotFound(
            f"expected models that comap ships for {env_id}, found none; give a model of yours to "
            "comap run (--model)"
        )
    found = shipped(SHIPPED[env_id])
    check_packages()
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: of a small model's, more wait for each other longer than they work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def play_learned(
    make_env: Callable[[], gymnasium.Env[str, str]],
    tasks: Sequence[str],
    models: Shipped,
    *,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[Learned], list[Trajectory]]:
    """Let CoMap's agent and ReAct play, both with the shipped policy; return how they did.

    Args:
        make_env: Makes an environment.
        tasks: What they play: at most `MOST` of these, spread evenly.
        models: The models, as `learned_models` finds them.
        seed: Seed of what is sampled.
        advance: Called after each episode.

    Returns:
        How each agent did, and their episodes, CoMap's first.

    Raises:
        CoMapError: A model cannot be loaded, or its settings are no agent's.
        MissingExtra: torch or transformers is not installed.
    """
    hush()
    policy = create_language_model("shipped:agent", device="cpu")
    world = create_language_model("shipped:wm", device="cpu")
    world_model = LanguageWorldModel(world, **models.settings["world_model"])
    told = {"seed": seed, **models.settings["agent"]}
    shared = {part.name for part in fields(AgentConfig)}
    agents = (
        create_agent("comap", **told, head=models.head),
        create_agent("react", **{name: value for name, value in told.items() if name in shared}),
    )
    found, played = [], []
    for agent in agents:
        with _one_thread():
            episodes = run_episodes(
                make_env,
                agent,
                evenly(tasks, MOST),
                lm=policy,
                world_model=world_model,
                live=MOST,
                on_done=lambda trials: advance(),
            )
        found.append(_summary(agent.name, episodes))
        played += episodes
    return found, played


def chosen(episodes: Sequence[Trajectory], number: int = 2) -> list[Trajectory]:
    """Return the episodes of CoMap's that show most: solved ones with a revised draft come first.

    Args:
        episodes: Episodes of any agents.
        number: How many to return.

    Example:
        >>> chosen([])
        []
    """
    own = [episode for episode in episodes if episode.agent == "comap"]
    return sorted(own, key=lambda e: (not (e.success and _gates(e).count(True)), not e.success))[
        :number
    ]


def learned_table(learned: Sequence[Learned], parameters: int) -> Table:
    """Return the results as a table.

    Args:
        learned: How each agent did.
        parameters: Number of the policy's parameters.

    Example:
        >>> told = Learned("comap", success_rate([True, False]), 0.5, 9.0, 8, 2, 0)
        >>> learned_table([told], 500_000).rows[0][:3]
        ('CoMap, with its own world model', 50.0, '9.5 - 90.5')
    """
    rows = []
    for told in learned:
        rate, share = told.success, None
        if told.reflected:
            share = 100 * told.revised / told.reflected
        rows.append(
            (
                _NAMES.get(told.agent, told.agent),
                100 * rate.value,
                f"{100 * rate.low:.1f} - {100 * rate.high:.1f}",
                100 * told.score,
                told.steps,
                share,
                rate.n,
            )
        )
    failed = sum(told.failed for told in learned)
    return Table(
        "A learned agent: success",
        ("agent", "success", "95 % interval", "goal conditions", "steps", "revised", "n"),
        tuple(rows),
        "Percent, but for steps. Policy and world model come with comap: "
        f"{parameters / 1e6:.1f} M parameters each, trained on generated tasks. 'revised': of "
        "the drafts that were reflected on, those that another action took the place of."
        + (f" {failed} episodes failed." if failed else ""),
    )


def _summary(name: str, episodes: Sequence[Trajectory]) -> Learned:
    gates = [gate for episode in episodes for gate in _gates(episode)]
    return Learned(
        name,
        success_rate(episode.success for episode in episodes),
        goal_condition_success(episode.score for episode in episodes),
        sum(len(episode.steps) for episode in episodes) / max(len(episodes), 1),
        len(gates),
        gates.count(True),
        sum(episode.error is not None for episode in episodes),
    )


def _gates(episode: Trajectory) -> list[bool]:
    """Return for each decision with a reflection whether its draft was revised."""
    notes = [step.notes for step in episode.steps]
    return [note["gate"] for note in notes if note.get("path") == "reflected"]
