"""Whether a policy knew better where the action gate opened: it drafts anew at these very steps.

A revision that the environment refuses may be the fault of reflection, or of a policy that knows no
action there that works. Drafts that are drawn anew, with no reflection, tell the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium

from ..agents import run_episodes
from ..agents.base import Decision, Reply, Request, View
from ..agents.react import ReActAgent, ReActConfig
from ..lm import LanguageModel
from ..trajectory import Trajectory

__all__ = ["redraw"]

_SHARED = (
    *("decoding", "state_text", "prompts", "form", "history_turns", "max_length"),
    *("temperature", "top_p", "draft_tokens", "examples"),
)


def redraw(
    episodes: Sequence[Trajectory],
    make_env: Callable[[], gymnasium.Env[str, str]],
    lm: LanguageModel | None,
    *,
    draws: int = 8,
    live: int = 64,
) -> dict[str, Any]:
    """Play recorded episodes again, draft anew where their gate opened, and count what is refused.

    Args:
        episodes: A CoMap agent's, of one split and one trial a task.
        make_env: Makes the environment that they were played in.
        lm: The policy that played them; None needs no episode at which a gate opened.
        draws: How many drafts are drawn at each of these steps, with seeds of their own.
        live: Episodes at the same time.

    Returns:
        ``steps`` is at how many the gate opened, ``faults`` how many episodes a fault cut short, whose
        further steps are not counted. Of the ``drafts`` and the ``revised`` actions there,
        of those ``redrawn``, and of the redrawn ones that are not the draft (``others``), each has
        ``n`` and ``refused``: how many would have done nothing.

    Example:
        >>> import gymnasium as gym, comap
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> redraw([], make_env, None)["redrawn"]
        {'n': 0, 'refused': 0}
    """
    opened = [one for one in episodes if any(step.notes.get("gate") for step in one.steps)]
    counts = {name: [0, 0] for name in ("drafts", "revised", "redrawn", "others")}
    steps = faults = 0
    if opened:
        again = run_episodes(
            make_env, _Redrawing(opened, draws), [one.task for one in opened], lm=lm, live=live
        )
        faults = sum(one.error is not None for one in again)
        for step in (step for one in again for step in one.steps):
            steps += "redrawn" in step.notes
            for name, seen in step.notes.get("redrawn", {}).items():
                counts[name][0] += len(seen)
                counts[name][1] += seen.count(False)
    told = {name: {"n": n, "refused": refused} for name, (n, refused) in counts.items()}
    return {"steps": steps, "draws": draws, "faults": faults, **told}


class _Redrawing:
    """Does what was done, and notes of which actions the environment would take at opened steps."""

    name = "redrawing"

    def __init__(self, episodes: Sequence[Trajectory], draws: int):
        settings = episodes[0].settings
        self.agent = ReActAgent(ReActConfig(**{n: settings[n] for n in _SHARED if n in settings}))
        self.config = self.agent.config
        self.episodes = {one.task: one for one in episodes}
        self.draws = draws

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        steps = self.episodes[view.task].steps
        step = steps[view.step]
        if not step.notes.get("gate"):
            return Decision(step.action)
        said = {number: one.notes["shown"] for number, one in enumerate(steps[: view.step])}
        taken = frozenset(view.admissible_actions or ())
        found = []
        for number in range(self.draws):
            fresh = replace(view, seed=number + 1, memory={"replies": dict(said)})
            found.append((yield from self.agent.decide(fresh)).action)
        draft = step.notes["draft_action"]
        seen: Mapping[str, list[str | None]] = {
            "drafts": [draft],
            "revised": [step.notes["ref_action"]],
            "redrawn": found,
            "others": [action for action in found if action != draft],
        }
        told = {name: [action in taken for action in some] for name, some in seen.items()}
        return Decision(step.action, notes={"redrawn": told})
