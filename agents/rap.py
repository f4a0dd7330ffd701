"""RAP: reasoning as planning, a tree search over a world model (Hao et al., 2023)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..lm import WordProbabilities, Words
from ..worldmodel import Imagined
from .acting import draft_action
from .asking import ask_apart
from .base import Decision, Imagine, Reply, Request, View
from .candidates import Candidate, propose_candidates
from .checks import require_whole
from .config import AgentConfig
from .foresight import ended, view_after
from .prompting import converse, cut_text
from .ranges import require_between
from .react import replies_in
from .search_tree import Node, back_up, best_child, descend, most_promising

__all__ = ["RAPAgent", "RAPConfig", "goal_overlap"]

_ANSWER = 8  # tokens of what its answer begins with


@dataclass(frozen=True, kw_only=True)
class RAPConfig(AgentConfig):
    """How RAP searches.

    A real step looks at up to ``rollouts * depth`` states. For each it samples ``candidates`` actions,
    up to ``candidate_rounds`` times over where few of them are admissible, and predicts and judges
    ``candidates`` futures: with the defaults up to 192 states, 6,144 samples and 1,536 judgements,
    which an untrained model comes near to. Where prompts are long (WebShop's pages) the judgements
    cost most. ``rollouts`` and ``depth`` lower all of it in proportion; ``evaluation_weight=0`` asks
    for no judgements, ``candidate_rounds=1`` for no more samples, ``state_text="belief"`` shortens
    prompts.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> RAPConfig(rollouts=4).depth
        6
    """

    candidates: int = 8
    """Actions tried in each state, d (METHODS.md 3 [C-ITP])."""
    candidate_temperature: float = 0.8
    """Temperature of the candidates (METHODS.md 3 [C-ITP])."""
    candidate_top_p: float = 0.95
    """Nucleus of the candidates [C-ITP]."""
    candidate_rounds: int = 4
    """How often lacking candidates are sampled again before admissible actions fill the places; with
    d samples or fewer each, at most 4 d in all [C-ITP]."""
    action_tokens: int = 32
    """Most tokens of a candidate (METHODS.md 3 [C-ITP])."""
    log_probs: Literal["sampled", "scored"] = "sampled"
    """Where a candidate's log-probability is from: its own sampling, which every model that tells
    log-probabilities can do; or a `Score` request for all candidates, as released [D]."""
    log_prob_weight: float = 0.2
    """Weight of the action's mean log-probability in its reward (METHODS.md 3 [C-ITP])."""
    evaluation_weight: float = 0.6
    """Weight of P("Yes") of the self-evaluation (METHODS.md 3 [C-ITP])."""
    overlap_weight: float = 0.2
    """Weight of the goal words in the predicted observation (METHODS.md 3 [C-ITP])."""
    overlap_letters: int = 4
    """Goal words have at least so many letters [C-ITP]."""
    exploration: float = 1.4
    """Weight w of the UCT term (METHODS.md 3 [C-ITP])."""
    depth: int = 6
    """Actions on a path (METHODS.md 3 [C-ITP])."""
    rollouts: int = 32
    """Paths searched at each real step (METHODS.md 3 [C-ITP]); what a step costs grows with it and
    with the depth."""
    discount: float = 1.0
    """Discount of later rewards, gamma (METHODS.md 3 [C-ITP])."""
    goal_reward: float = 1.0
    """Reward of an action that reaches the goal, and of each step that the depth leaves after it:
    above what any other edge can earn, so that a goal counts, and more the earlier it comes [D]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ("candidates", "candidate_rounds", "action_tokens", "overlap_letters", "depth")
        require_whole(self, 1, *whole, "rollouts")
        require_between(self, 0, 10, "candidate_temperature", "exploration", "goal_reward")
        require_between(self, 0, 10, "log_prob_weight", "evaluation_weight", "overlap_weight")
        require_between(self, 0, 1, "discount")
        require_between(self, 1e-6, 1, "candidate_top_p")

    def needs(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` a language model must have for these settings."""
        words = {"words"} if self.evaluation_weight else set()
        score = {"score"} if self.log_probs == "scored" else set()
        return super().needs() | {"prefix"} | words | score


def goal_overlap(goal: str, text: str, letters: int = 4) -> float:
    """Return the share of a goal's different words of some length that occur in a text.

    Example:
        >>> goal_overlap("Put a clean mug in the cabinet.", "The cabinet 1 is closed.", 4)
        0.5
    """
    words = {word.strip(" .,:;()[]").lower() for word in goal.split()}
    words = {word for word in words if len(word) >= letters}
    low = text.lower()
    return sum(word in low for word in words) / len(words) if words else 0.0


class RAPAgent:
    """A Monte Carlo tree search at every real step; the world model tells what actions lead to.

    A rollout descends by UCT to a leaf, expands it, and goes on along the most promising children,
    expanding each, to the full depth. The reward of an action is a weighted sum of its mean
    log-probability, of P("Yes") when the model judges it, and of the goal words in what is
    predicted; the most promising child is the one with the greatest reward without the first term.
    The root's child with the most visits is taken, of equals the one of the greatest value. The next
    real step starts with a new tree.

    Deviations from METHODS.md 3: a state is the agent's usual prompt (the turns so far, or the
    belief), not goal, observation and inventory; equal states at different places of the tree are
    different nodes; N of a node counts the paths through it; an action that reaches the goal (by
    the facts) or ends the episode ends the path, with `RAPConfig.goal_reward`; where actions are
    sampled, filled-in ones count as the least probable of the sampled; the world model is asked as it
    is set up (its own token limit and temperature), not with 128 tokens at 0.8.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> RAPAgent().config.rollouts
        32
    """

    name = "rap"

    def __init__(self, config: RAPConfig | None = None):
        self.config = config or RAPConfig()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Search, and take the root's best child; where nothing can be proposed, act as ReAct."""
        replies = replies_in(view)
        search = _Search(view, self.config, replies)
        yield from search.run()
        best = best_child(search.root)
        if best is None:
            messages = converse(view, self.config, replies)
            draft = yield from draft_action(view, self.config, messages)
            replies[view.step] = draft.text
            return Decision(draft.action, notes=draft.notes() | {"search": search.notes()})
        replies[view.step] = f"Action: {best.action}"
        notes = {"decoding": self._decoding(view), "search": search.notes()}
        return Decision(best.action, best.imagined, notes)

    def _decoding(self, view: View) -> str:
        return self.config.decoding if view.admissible_actions else "free"


class _Search:
    """The search of one real step."""

    def __init__(self, view: View, config: RAPConfig, replies: dict[int, str]):
        self.view, self.config, self.replies = view, config, replies
        self.root = Node()
        self.expansions = 0
        self.unknown = 0

    def run(self) -> Generator[Request, Reply, None]:
        """Do all rollouts; end at once where the root has no candidate."""
        config = self.config
        for _ in range(config.rollouts):
            path = descend(self.root, config.exploration, config.depth)
            while len(path) < config.depth:
                node = path[-1] if path else self.root
                if node.end is not None:
                    break
                if node.children is None:
                    node.children = yield from self._expand(path)
                if not node.children:
                    break
                path.append(most_promising(node.children))
            if not path:
                return
            back_up(self.root, path, config.discount)

    def _expand(self, path: Sequence[Node]) -> Generator[Request, Reply, list[Node]]:
        """Propose actions after a path, ask what follows each, and judge them: a batch each."""
        self.expansions += 1
        name = f"search, state {self.expansions}"
        steps = tuple(node.imagined for node in path if node.imagined is not None)
        there = view_after(self.view, steps)
        candidates = yield from propose_candidates(there, self.config, self.replies, name)
        if not candidates:
            return []
        futures: list[Imagined] = yield [Imagine(c.action, steps) for c in candidates]
        judged = yield from self._judge(there, candidates, futures, name)
        left = self.config.depth - len(path) - 1
        self.unknown += sum(candidate.log_prob is None for candidate in candidates)
        return [self._node(*known, left) for known in zip(candidates, futures, judged, strict=True)]

    def _judge(
        self, there: View, candidates: Sequence[Candidate], futures: Sequence[Imagined], name: str
    ) -> Generator[Request, Reply, list[float]]:
        """Return P("Yes") for each candidate; nothing is asked where it has no weight."""
        if self.config.evaluation_weight == 0:
            return [0.0] * len(candidates)
        asked = [
            self._question(there, candidate.action, future.observation, name)
            for candidate, future in zip(candidates, futures, strict=True)
        ]
        found: list[WordProbabilities] = yield asked
        told = [reply.probabilities[0] for reply in found]
        return [min(max(value, 0.0), 1.0) if value == value else 0.0 for value in told]

    def _question(self, there: View, action: str, observation: str, name: str) -> Words:
        config, count = self.config, there.count_tokens
        action = cut_text(action, config.max_length // 8, count)
        observation = cut_text(observation, config.max_length // 4, count)
        slots = {"action": action, "observation": observation}
        messages = ask_apart(there, config, "rap_evaluate", _ANSWER, **slots)
        purpose = f"{name}: evaluation"
        return Words(messages, (" Yes", " No"), "Answer:", config.adapter, purpose)

    def _node(self, candidate: Candidate, future: Imagined, yes: float, left: int) -> Node:
        """Return the child that a candidate leads to; `left` steps of the depth are left after it."""
        config = self.config
        node = Node(candidate.action, future)
        overlap = goal_overlap(self.view.goal, future.observation, config.overlap_letters)
        node.hint = config.evaluation_weight * yes + config.overlap_weight * overlap
        node.reward = node.hint + config.log_prob_weight * (candidate.log_prob or 0.0)
        if future.goal_reached:
            node.reward = node.hint = config.goal_reward
            node.end = config.goal_reward * sum(config.discount**i for i in range(left))
        elif ended(future):
            node.end = 0.0
        return node

    def notes(self) -> dict[str, Any]:
        """Return what a trajectory keeps of the search, as JSON data."""
        children = [
            {
                "action": node.action,
                "visits": node.visits,
                "value": round(node.value, 6),
                "reward": round(node.reward, 6),
            }
            for node in self.root.children or ()
        ]
        return {
            "rollouts": self.root.visits,
            "expansions": self.expansions,
            "unknown_log_probs": self.unknown,
            "children": children,
        }
