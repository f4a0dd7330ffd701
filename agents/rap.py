"""RAP: reasoning as planning, a tree search over a world model (Hao et al., 2023)."""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from ..envs.registry import canonical_action
from ..lm import Completion, Generate, Message, NextWord, Sampling, Score, Scores, WordProbabilities
from ..lm.prompts import cut_text
from ..settings import PositiveInt, Range, Share
from ..worldmodel import Imagined
from .base import Decision, Imagine, Reply, Request, View
from .config import AgentConfig
from .parsing import parse_action
from .prompting import (
    as_choices,
    ask_apart,
    ask_on,
    converse,
    draft_action,
    ended,
    listed_actions,
    prompt_of,
    seed_for,
    view_after,
)
from .react import replies_in


@dataclass(slots=True, eq=False)
class Node:
    """A state in the tree, with the action that leads to it."""

    action: str = ""
    imagined: Imagined | None = None
    reward: float = 0.0
    hint: float = 0.0
    """the reward without the action's log-probability: which child a path goes on with"""
    end: float | None = None
    """what the rest of a path is worth that ends here; None where it goes on"""
    visits: int = 0
    value: float = 0.0
    """mean return of the paths through it, Q"""
    children: list[Node] | None = None
    """None before it was expanded"""


def uct(parent_visits: int, child: Node, weight: float) -> float:
    """Return ``Q + weight * sqrt(ln N(parent) / N(child))``; infinite where there was no visit."""
    if child.visits == 0:
        return math.inf
    return child.value + weight * math.sqrt(math.log(max(parent_visits, 1)) / child.visits)


def most_promising(children: Sequence[Node]) -> Node:
    """Return the child with the best hint, the first of equals."""
    return max(children, key=lambda child: child.hint)


def descend(root: Node, weight: float, depth: int) -> list[Node]:
    """Return a path from below the root to a leaf, or to `depth`."""
    path: list[Node] = []
    node = root
    while len(path) < depth and node.end is None and node.children:
        children = node.children
        visits = node.visits

        # UCT is infinite for all children without a visit: among those the hint decides.
        unvisited = [child for child in children if child.visits == 0]
        if unvisited:
            node = most_promising(unvisited)
        else:
            node = max(children, key=lambda child: uct(visits, child, weight))
        path.append(node)
    return path


def back_up(root: Node, path: Sequence[Node], discount: float) -> float:
    """Enter a path's return into its nodes' means, and return that of the whole path."""
    # A goal before the full depth is worth something in each step that is left (`Node.end`).
    total = 0.0
    if path:
        total = path[-1].end or 0.0

    for node in reversed(path):
        total = node.reward + discount * total
        node.visits += 1
        node.value += (total - node.value) / node.visits
    root.visits += 1
    root.value += (total - root.value) / root.visits
    return total


def best_child(root: Node) -> Node | None:
    """Return the child with the most visits, then the best value, the first of equals."""
    if not root.children:
        return None
    return max(root.children, key=lambda child: (child.visits, child.value))


_LEAST = -100.0  # an action that the model finds impossible
_PREFIX = "Action:"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An action worth trying; `log_prob` is the mean over its tokens, None where it is not known."""

    action: str
    log_prob: float | None = None


def mean_log_prob(logprobs: Sequence[float] | None) -> float | None:
    """Return the mean log-probability of an action's tokens, from -100 to 0; None if unknown."""
    if not logprobs:
        return None
    if any(math.isnan(value) for value in logprobs):
        return _LEAST

    # Bounded, since one token of probability 0 would make all rewards on the path infinite.
    bounded = [min(max(value, _LEAST), 0.0) for value in logprobs]
    return math.fsum(bounded) / len(bounded)


def propose_candidates(
    view: View, config: RAPConfig, replies: dict[int, str], purpose: str
) -> Generator[Request, Reply, list[Candidate]]:
    """Ask for up to ``config.candidates`` different actions, as the agent's decoding says."""
    messages = _messages(view, config, replies)
    if config.decoding == "scored" and view.admissible_actions:
        return (yield from _best_scored(view.admissible_actions, config, messages, purpose))

    admissible: dict[str, str] = {}  # by their plain text
    for text in view.admissible_actions or ():
        admissible.setdefault(canonical_action(view.env_id, text), text)
    sampled = yield from _sampled(view, config, messages, admissible, purpose)

    # Admissible actions, drawn by the seed, fill the places that sampling left (as released).
    unsampled = [text for plain, text in admissible.items() if plain not in sampled]
    random.Random(seed_for(config, view, f"{purpose}: fill")).shuffle(unsampled)
    places_left = max(config.candidates - len(sampled), 0)
    candidates = [*sampled.values(), *map(Candidate, unsampled[:places_left])]

    if config.log_probs == "scored" and candidates:
        actions = tuple(candidate.action for candidate in candidates)
        scores = yield from _scored(messages, actions, config, purpose)
        log_probs = map(mean_log_prob, scores.logprobs)
        return [Candidate(*pair) for pair in zip(actions, log_probs, strict=True)]
    return _with_log_probs(candidates)


def _best_scored(
    admissible: Sequence[str], config: RAPConfig, messages: tuple[Message, ...], purpose: str
) -> Generator[Request, Reply, list[Candidate]]:
    """Return the likeliest of the admissible actions, the first of equals first."""
    actions = tuple(dict.fromkeys(admissible))
    scores = yield from _scored(messages, actions, config, purpose)
    likeliest_first = sorted(range(len(actions)), key=lambda i: (-scores.totals[i], i))

    candidates = []
    for index in likeliest_first[: config.candidates]:
        log_prob = mean_log_prob(scores.logprobs[index])
        candidates.append(Candidate(actions[index], log_prob))
    return candidates


def _sampled(
    view: View,
    config: RAPConfig,
    messages: tuple[Message, ...],
    admissible: dict[str, str],
    purpose: str,
) -> Generator[Request, Reply, dict[str, Candidate]]:
    """Sample different actions, by their plain text; none but admissible ones where such are known."""
    candidates: dict[str, Candidate] = {}
    for number in range(1, config.candidate_rounds + 1):
        places_left = config.candidates - len(candidates)
        if places_left <= 0:
            break

        requests = _samples(view, config, messages, places_left, f"{purpose}, round {number}")
        completions: list[Completion] = yield requests
        for completion in completions:
            action = parse_action(_PREFIX + completion.text, view.admissible_actions)
            if action is None:
                continue
            plain = canonical_action(view.env_id, action)
            if plain in candidates or (admissible and plain not in admissible):
                continue
            action = admissible.get(plain, action)
            candidates[plain] = Candidate(action, mean_log_prob(completion.logprobs))
    return candidates


def _with_log_probs(candidates: list[Candidate]) -> list[Candidate]:
    """Return candidates of which a filled-in one counts as the least probable of the sampled."""
    log_probs = [c.log_prob for c in candidates if c.log_prob is not None]
    if not log_probs:
        return candidates

    least = min(log_probs)
    completed = []
    for candidate in candidates:
        if candidate.log_prob is None:
            candidate = replace(candidate, log_prob=least)
        completed.append(candidate)
    return completed


def _messages(view: View, config: RAPConfig, replies: dict[int, str]) -> tuple[Message, ...]:
    """Return the agent's usual conversation; in standard prompts the admissible actions follow."""
    action_list = listed_actions(view, config.max_length // 4)
    room = max(config.action_tokens - config.draft_tokens, 0)
    if config.prompts == "brief" or not action_list:
        return converse(view, config, replies, reserve=room)

    # The list stands in the question itself, so the conversation must not list it again.
    question = prompt_of(config, "rap_act", actions=action_list)[-1].content
    room += view.count_tokens(question)
    return ask_on(converse(view, config, replies, reserve=room, listing=False), question)


def _scored(
    messages: tuple[Message, ...], actions: Sequence[str], config: RAPConfig, purpose: str
) -> Generator[Request, Reply, Scores]:
    """Ask how probable each of some actions is."""
    request = Score(
        messages,
        tuple(f" {action}" for action in actions),
        _PREFIX,
        adapter=config.adapter,
        purpose=f"{purpose}: score",
        thinking=config.asks_to_think,
    )
    scores: Scores = yield request
    return scores


def _samples(
    view: View, config: RAPConfig, messages: tuple[Message, ...], count: int, purpose: str
) -> list[Generate]:
    """Return requests for candidates that differ in their seeds alone."""
    choices: tuple[str, ...] | None = None
    tokens = config.action_tokens
    stop: tuple[str, ...] = ("\n",)
    if config.decoding == "masked" and view.admissible_actions:
        choices, tokens = as_choices(view.admissible_actions)
        stop = ()  # a choice ends by itself
    sampling = Sampling(tokens, config.candidate_temperature, config.candidate_top_p, stop)

    # A purpose of its own for each seed: else all samples of a state would be the same text.
    seeds = [seed_for(config, view, f"{purpose}, {number}") for number in range(count)]
    request = Generate(
        messages,
        sampling,
        _PREFIX,
        choices,
        config.adapter,
        f"{purpose}: candidate",
        thinking=config.asks_to_think,
    )
    return [replace(request, sampling=replace(sampling, seed=seed)) for seed in seeds]


_ANSWER = 8  # tokens of what its answer begins with


@dataclass(frozen=True, kw_only=True)
class RAPConfig(AgentConfig):
    """How RAP searches.

    A real step looks at up to ``rollouts * depth`` states. For each it samples ``candidates`` actions,
    up to ``candidate_rounds`` times over where few of them are admissible, and predicts and judges
    ``candidates`` futures: with the defaults up to 32 states, 128 samples, 128 judgements and 128
    predictions. Where prompts are long (WebShop's pages) the judgements cost most. ``rollouts`` and
    ``depth`` lower all of it in proportion; ``evaluation_weight=0`` asks for no judgements,
    ``state_text="belief"`` shortens prompts.

    Weights, temperature, exploration and ``action_tokens`` are those of ITP's released program. Its
    search is larger, and so is that of the tables of ``comap bench run --scale paper``:
    ``candidates=8, depth=6, rollouts=32``, up to 192 states a step.

    Example:
        >>> RAPConfig(candidates=8, depth=6, rollouts=32).candidate_rounds
        1
    """

    candidates: PositiveInt = 4
    """Actions tried in each state, d; 8 in ITP's released program."""
    candidate_temperature: Annotated[float, Range(0, 10)] = 0.8
    """Temperature of the candidates."""
    candidate_top_p: Annotated[float, Range(1e-6, 1)] = 0.95
    """Nucleus of the candidates."""
    candidate_rounds: PositiveInt = 1
    """How often candidates are sampled, each time as many as lack, before admissible actions fill the
    places."""
    action_tokens: PositiveInt = 32
    """Most tokens of a candidate."""
    log_probs: Literal["sampled", "scored"] = "sampled"
    """Where a candidate's log-probability is from: its own sampling, which every model that returns
    log-probabilities can do; or a `Score` request for all candidates, as released."""
    log_prob_weight: Annotated[float, Range(0, 10)] = 0.2
    """Weight of the action's mean log-probability in its reward."""
    evaluation_weight: Annotated[float, Range(0, 10)] = 0.6
    """Weight of P("Yes") of the self-evaluation."""
    overlap_weight: Annotated[float, Range(0, 10)] = 0.2
    """Weight of the goal words in the predicted observation."""
    overlap_letters: PositiveInt = 4
    """Fewest letters of a goal word."""
    exploration: Annotated[float, Range(0, 10)] = 1.4
    """Weight w of the UCT term."""
    depth: PositiveInt = 4
    """Actions on a path; 6 in ITP's released program."""
    rollouts: PositiveInt = 8
    """Paths searched at each real step, 32 in ITP's released program; what a step costs grows with it
    and with the depth."""
    discount: Share = 1.0
    """Discount of later rewards, gamma."""
    goal_reward: Annotated[float, Range(0, 10)] = 1.0
    """Reward of an action that reaches the goal, and of each step that the depth leaves after it:
    above what any other edge can earn, so that a goal counts, and more the earlier it comes."""

    def required_capabilities(self) -> frozenset[str]:
        capabilities = super().required_capabilities() | {"prefix"}
        if self.evaluation_weight:
            capabilities |= {"words"}
        if self.log_probs == "scored":
            capabilities |= {"score"}
        return capabilities


def goal_overlap(goal: str, text: str, letters: int = 4) -> float:
    """Return the share of a goal's different words of some length that occur in a text."""
    words = {word.strip(" .,:;()[]").lower() for word in goal.split()}
    long_words = {word for word in words if len(word) >= letters}
    if not long_words:
        return 0.0
    lower_text = text.lower()
    return sum(word in lower_text for word in long_words) / len(long_words)


class RAPAgent:
    """A Monte Carlo tree search at every real step; the world model predicts what actions lead to.

    A rollout descends by UCT to a leaf, expands it, and goes on along the most promising children,
    expanding each, to the full depth. The reward of an action is a weighted sum of its mean
    log-probability, of P("Yes") when the model judges it, and of the goal words in what is
    predicted; the most promising child is the one with the greatest reward without the first term.
    The root's child with the most visits is taken, of equals the one of the greatest value. The next
    real step starts with a new tree.

    Deviations: a state is the agent's usual prompt (the turns so far, or the
    belief), not goal, observation and inventory; equal states at different places of the tree are
    different nodes; N of a node counts the paths through it; an action that reaches the goal (by
    the facts) or ends the episode ends the path, with `RAPConfig.goal_reward`; where actions are
    sampled, filled-in ones count as the least probable of the sampled; the world model is asked as it
    is set up (its own token limit and temperature), not with 128 tokens at 0.8.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> RAPAgent().calls_per_step()
        'up to 256 model calls and 128 predictions (4 candidates x 8 rollouts x depth 4)'
    """

    name = "rap"
    asks_world_model = True

    def __init__(self, config: RAPConfig | None = None):
        self.config = config or RAPConfig()

    def calls_per_step(self) -> str:
        """Return in words what a step asks for at most."""
        config = self.config
        states = config.rollouts * config.depth
        if config.decoding == "scored":
            calls = 1  # a `Score` request for all actions
        else:
            calls = config.candidates * config.candidate_rounds
            if config.log_probs == "scored":
                calls += 1
        if config.evaluation_weight:
            calls += config.candidates
        return (
            f"up to {states * calls:,} model calls and {states * config.candidates:,} predictions "
            f"({config.candidates} candidates x {config.rollouts} rollouts x depth {config.depth})"
        )

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Search, and take the root's best child; where nothing can be proposed, act as ReAct."""
        replies = replies_in(view)
        search = _Search(view, self.config, replies)
        yield from search.run()
        best = best_child(search.root)
        if best is None:
            messages = converse(view, self.config, replies)
            draft = yield from draft_action(view, self.config, messages)
            replies[view.step] = draft.shown
            return Decision(draft.action, notes=draft.notes() | {"search": search.notes()})

        replies[view.step] = f"Action: {best.action}"
        decoding = self.config.decoding if view.admissible_actions else "free"
        notes = {"decoding": decoding, "search": search.notes()}
        return Decision(best.action, best.imagined, notes)


class _Search:
    """The search of one real step."""

    def __init__(self, view: View, config: RAPConfig, replies: dict[int, str]):
        self.view = view
        self.config = config
        self.replies = replies
        self.root = Node()
        self.expansions = 0
        self.unknown_log_probs = 0

    def run(self) -> Generator[Request, Reply, None]:
        """Do all rollouts; end at once where the root has no candidate."""
        config = self.config
        for _ in range(config.rollouts):
            path = descend(self.root, config.exploration, config.depth)

            # The simulation goes on to the full depth. Its nodes stay in the tree: what was asked
            # once need not be asked by a later rollout.
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
        name = f"search, state {self.expansions}"  # of this step: purposes make seeds differ
        steps = tuple(node.imagined for node in path if node.imagined is not None)
        state = view_after(self.view, steps)
        candidates = yield from propose_candidates(state, self.config, self.replies, name)
        if not candidates:
            return []

        futures: list[Imagined] = yield [Imagine(c.action, steps) for c in candidates]
        yes_probabilities = yield from self._judge(state, candidates, futures, name)
        self.unknown_log_probs += sum(candidate.log_prob is None for candidate in candidates)

        children = []
        remaining_steps = self.config.depth - len(path) - 1
        judged = zip(candidates, futures, yes_probabilities, strict=True)
        for candidate, future, yes_probability in judged:
            children.append(self._child(candidate, future, yes_probability, remaining_steps))
        return children

    def _judge(
        self, state: View, candidates: Sequence[Candidate], futures: Sequence[Imagined], name: str
    ) -> Generator[Request, Reply, list[float]]:
        """Return P("Yes") for each candidate; nothing is asked where it has no weight."""
        config = self.config
        if config.evaluation_weight == 0:
            return [0.0] * len(candidates)

        requests = []
        for candidate, future in zip(candidates, futures, strict=True):
            messages = ask_apart(
                state,
                config,
                "rap_evaluate",
                _ANSWER,
                action=cut_text(candidate.action, config.max_length // 8, state.count_tokens),
                observation=cut_text(
                    future.observation, config.max_length // 4, state.count_tokens
                ),
            )
            request = NextWord(
                messages,
                (" Yes", " No"),
                "Answer:",
                config.adapter,
                f"{name}: evaluation",
                config.asks_to_think,
            )
            requests.append(request)
        replies: list[WordProbabilities] = yield requests

        yes_probabilities = []
        for reply in replies:
            yes_probability = reply.probabilities[0]
            if math.isnan(yes_probability):  # the best child would be a matter of their order
                yes_probability = 0.0
            yes_probabilities.append(min(max(yes_probability, 0.0), 1.0))
        return yes_probabilities

    def _child(
        self,
        candidate: Candidate,
        future: Imagined,
        yes_probability: float,
        remaining_steps: int,
    ) -> Node:
        """Return the node of a candidate, with its rewards; `remaining_steps` of the depth follow it."""
        config = self.config
        child = Node(candidate.action, future)
        overlap = goal_overlap(self.view.goal, future.observation, config.overlap_letters)
        child.hint = config.evaluation_weight * yes_probability + config.overlap_weight * overlap
        child.reward = child.hint + config.log_prob_weight * (candidate.log_prob or 0.0)

        # A path that ends at the goal has fewer rewards to add up. So each step that it saves counts
        # as the goal does: else a longer path would be worth more.
        if future.goal_reached:
            child.hint = config.goal_reward
            child.reward = config.goal_reward
            discounts = sum(config.discount**step for step in range(remaining_steps))
            child.end = config.goal_reward * discounts
        elif ended(future):
            child.end = 0.0
        return child

    def notes(self) -> dict[str, Any]:
        """Return what the trajectory keeps of the search."""
        children = []
        for node in self.root.children or ():
            child = {
                "action": node.action,
                "visits": node.visits,
                "value": round(node.value, 6),
                "reward": round(node.reward, 6),
            }
            children.append(child)
        return {
            "rollouts": self.root.visits,
            "expansions": self.expansions,
            "unknown_log_probs": self.unknown_log_probs,
            "children": children,
        }
