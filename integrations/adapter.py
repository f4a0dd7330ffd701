"""Text environments of others with state facts: ``adapt(env, canonicalizer)``; TextArena's games for it."""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import gymnasium

from ..envs import Briefing, Canonicalizer, Outcome, Panel, TextEnv
from ..envs.canon import collapse
from ..errors import InvalidAction, NoEpisode, OptionError, SnapshotError, needs_extra
from ..facts import Fact, State
from ..spaces import Unicode

_SPLIT = "seeds"
_METHODS = ("initial", "update", "action")
_RANDOM = threading.Lock()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Wording:
    """What is known about another environment; all fields are optional.

    `goal` is the task in words, or a function of the first observation. `observe` writes an observation as
    text; `act` reads an action from text, with ValueError for an invalid one, whose answer is `refusal`.
    `admissible` lists actions from the last text and ``info``; `success` decides from the reward,
    ``terminated`` and ``info`` (by default: terminated with a positive reward); `refused` decides from the
    text. The others see only facts, so they hold in imagination too: `legal` actions, `score`, goal
    `reached`, episode `over`, the `expert`'s action.

    Language models are told the `instructions` (what an action looks like, and when the task is done) and
    shown the `example`, a worked episode as texts by turns: an observation, a reply such as
    ``Thought: ...`` and ``Action: ...`` in two lines, the next observation, and so on. Without
    instructions they are told the admissible actions alone.
    """

    goal: str | Callable[[str], str] = ""
    observe: Callable[[Any], str] | None = None
    act: Callable[[str], Any] | None = None
    admissible: Callable[[str, Mapping[str, Any]], Iterable[str] | None] | None = None
    legal: Callable[[State], Iterable[str] | None] | None = None
    success: Callable[[float, bool, Mapping[str, Any]], bool] | None = None
    score: Callable[[State], float] | None = None
    reached: Callable[[State], bool | None] | None = None
    over: Callable[[State], bool] | None = None
    refused: Callable[[str], bool] | None = None
    expert: Callable[[State], str | None] | None = None
    refusal: str = "Nothing happens."
    instructions: str = ""
    example: Sequence[str] = ()

    @property
    def briefing(self) -> Briefing:
        """What a language model is told of the environment.

        Raises:
            OptionError: The instructions are no text, or the example is no list of texts.
        """
        texts = [self.instructions, *self.example]
        if isinstance(self.example, str) or not all(isinstance(text, str) for text in texts):
            raise OptionError(
                "expected Wording(instructions=TEXT, example=[OBSERVATION, REPLY, OBSERVATION, ...]), "
                f"found {self.instructions!r:.80} and {self.example!r:.80}; give texts"
            )

        # Turns alternate: the environment speaks first.
        roles = ("user", "assistant")
        example = tuple((roles[turn % 2], text) for turn, text in enumerate(self.example))
        return Briefing(self.instructions, example)


class PatternCanonicalizer:
    """Reads facts by a table of regular expressions: see `adapt`. An empty table reads none."""

    def __init__(self, table: Mapping[str, str | Sequence[str]]):
        self._rules: list[_Rule] = []
        for pattern, texts in table.items():
            rows = [texts] if isinstance(texts, str) else texts
            try:
                self._rules.append(_Rule.of(pattern, rows))
            except (re.error, LookupError, ValueError) as error:
                raise OptionError(
                    "expected a regular expression and facts such as 'at(agent, cell {1})', found "
                    f"{pattern!r:.80}: {rows!r:.200} ({error})"
                ) from error

        # Results name the version: facts of another table are not to be compared with these.
        digest = hashlib.sha256(repr(list(table.items())).encode("utf-8", "replace")).hexdigest()
        self.version = f"patterns-{digest[:12]}" if table else "no facts"

    def initial(self, goal: str, observation: str) -> State:
        return self.update(State(), "", observation)

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the facts after an observation: rules apply in the table's order, at each match."""
        facts = set(state.facts)
        parsed = False
        for rule in self._rules:
            for match in rule.pattern.finditer(observation):
                parsed = True
                groups = [match[0], *match.groups("")]
                for change in rule.changes:
                    fact = _filled(change.template, groups, match.groupdict(""))
                    if change.removes:
                        facts = {present for present in facts if not _covers(fact, present)}
                    else:
                        facts.add(fact)
        return State(frozenset(facts), parsed)

    def action(self, text: str) -> str:
        return collapse(text)


class _Change(NamedTuple):
    """A fact that a rule adds or removes, with ``{1}`` and such for groups of the match."""

    removes: bool
    template: Fact


class _Rule(NamedTuple):
    """A row of a `PatternCanonicalizer`'s table."""

    pattern: re.Pattern[str]
    changes: list[_Change]

    @classmethod
    def of(cls, pattern: str, rows: Sequence[str]) -> _Rule:
        rule = cls(re.compile(pattern), [])
        for row in rows:
            removes = row[:1] == "-"
            state = State.from_text(row.lstrip("- "))
            rule.changes.extend(_Change(removes, fact) for fact in state.facts)

        # A template that names a group which is not there must fail now, not in an episode.
        groups = [""] * (rule.pattern.groups + 1)
        named_groups = dict.fromkeys(rule.pattern.groupindex, "")
        for change in rule.changes:
            _filled(change.template, groups, named_groups)
        return rule


def _filled(template: Fact, groups: Sequence[str], named_groups: Mapping[str, str]) -> Fact:
    return tuple(collapse(part.format(*groups, **named_groups)) for part in template)


def _covers(template: Fact, fact: Fact) -> bool:
    """Return whether a fact is the one to remove, where ``*`` stands for any argument."""
    return len(template) == len(fact) and all(
        wanted_part in ("*", part) for wanted_part, part in zip(template, fact, strict=True)
    )


class AdaptedEnv(TextEnv):
    """A Gymnasium environment of others as one of comap: see `adapt`."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        canonicalizer: Canonicalizer | Mapping[str, str | Sequence[str]] | None = None,
        words: Wording | None = None,
        *,
        name: str | None = None,
        seeds: Iterable[int] = range(100),
        **common: Any,
    ):
        super().__init__(**common)
        if canonicalizer is None:
            gymnasium.logger.warn(
                "adapt() was given no canonicalizer: facts are empty, so that Delta-F1 is not defined; "
                "give one, or a table of regular expressions"
            )
        if canonicalizer is None or isinstance(canonicalizer, Mapping):
            canonicalizer = PatternCanonicalizer(canonicalizer or {})

        if not callable(getattr(env, "step", None)) or not callable(getattr(env, "reset", None)):
            raise OptionError(f"expected a gymnasium.Env, found {type(env).__name__}")
        missing = [name for name in _METHODS if not callable(getattr(canonicalizer, name, None))]
        if missing:
            raise OptionError(
                f"expected a canonicalizer with {', '.join(_METHODS)}, found "
                f"{type(canonicalizer).__name__} without {', '.join(missing)}"
            )
        self._name = name
        self.adapted = env
        self.canonicalizer = canonicalizer

        self._words = words or Wording()
        if not isinstance(self._words, Wording):
            raise OptionError(f"expected a Wording, found {type(words).__name__}")
        self.briefing = self._words.briefing
        space = getattr(env, "action_space", None)
        if self._words.act is None and isinstance(space, gymnasium.spaces.Discrete):
            raise OptionError(f"expected texts as actions, found {space}; give Wording(act=...)")

        # Most environments of others have no names for their tasks: a seed is one.
        self._seeds = {f"{_SPLIT}/{seed}": int(seed) for seed in seeds}
        self._panel = Panel.of(self._seeds, _SPLIT, [_SPLIT])
        self._given_limit = self._limit
        self._played_steps: list[tuple[str, str]] = []
        self._last_info: Mapping[str, Any] = {}

    @property
    def env_id(self) -> str:  # type: ignore[override]
        """The name in records: as given, else the id under which it or the adapted one is registered."""
        if self._name:
            return self._name
        spec = self.spec or getattr(self.adapted, "spec", None)
        return spec.id if spec is not None else type(self.adapted).__name__

    @property
    def tasks(self) -> Panel:
        return self._panel

    def expert_action(self) -> str | None:
        return self.expert_from(self._state, None) if self._running else None

    def expert_from(self, state: State, admissible: tuple[str, ...] | None) -> str | None:
        return None if self._words.expert is None else self._words.expert(state)

    def goal_reached(self, state: State) -> bool | None:
        return None if self._words.reached is None else self._words.reached(state)

    def ended(self, state: State) -> bool:
        return self._words.over is not None and bool(self._words.over(state))

    def score_of(self, state: State) -> float | None:
        return None if self._words.score is None else float(self._words.score(state))

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        if self._words.legal is None:
            return None
        actions = self._words.legal(state)
        return None if actions is None else tuple(actions)

    def refused(self, observation: str) -> bool:
        if observation == self._words.refusal:
            return True
        return self._words.refused is not None and bool(self._words.refused(observation))

    def close(self) -> None:
        self.adapted.close()

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        if task not in self._seeds:
            raise self._panel.missing(task)
        observation, self._last_info = self.adapted.reset(seed=self._seeds[task])
        text = self._text(observation)
        self._played_steps = [("", text)]
        self._limit = self._given_limit

        goal = self._words.goal
        if not isinstance(goal, str):
            goal = goal(text)
        return _SPLIT, goal, Outcome(text, admissible=self._admissible(text))

    def _act(self, action: str) -> Outcome:
        """Take an action that can be read; any other changes nothing, and is answered by the refusal."""
        try:
            native_action = self._native_action(action)
        except ValueError:
            text = self._words.refusal
            return Outcome(
                text, 0.0, self._outcome.score, invalid=True, admissible=self._outcome.admissible
            )

        step = self.adapted.step(native_action)
        observation, raw_reward, terminated, truncated, self._last_info = step
        text = self._text(observation)
        reward = float(raw_reward)
        self._played_steps.append((action, text))
        if truncated:  # by the environment itself: this step is the last
            self._limit = self._steps

        success = bool(terminated and reward > 0)
        if self._words.success is not None:
            success = bool(self._words.success(reward, bool(terminated), self._last_info))
        admissible = () if terminated or truncated else self._admissible(text)
        return Outcome(
            text, reward, float(success), success, bool(terminated), self.refused(text), admissible
        )

    def _with_suggestions(self, outcome: Outcome, state: State) -> Outcome:
        """Return an outcome with what is known from facts: the progress, and actions."""
        score = self.score_of(state)
        if score is not None and not outcome.success:
            outcome = outcome._replace(score=min(max(score, 0.0), 1.0))
        if self._words.admissible is None and not outcome.terminated:
            outcome = outcome._replace(admissible=self.admissible_of(state))
        return outcome

    def _save(self) -> Any:
        return (tuple(self._played_steps), self._limit, self._outcome.admissible)

    def _load(self, saved: Any) -> tuple[str, ...] | None:
        """Go back to a moment by the same seed and actions: an environment of others has no snapshots."""
        played_steps, limit, saved_actions = saved
        _, _, first = self._open(self._task)

        texts = [first.observation]
        for action, _ in played_steps[1:]:
            step = self.adapted.step(self._native_action(action))
            observation, *_, self._last_info = step
            texts.append(self._text(observation))
        if texts != [text for _, text in played_steps]:
            raise SnapshotError(
                "expected the same texts after the same seed and actions, found others: the "
                "environment is not deterministic, so it cannot go back to a moment"
            )

        self._played_steps = list(played_steps)
        self._limit = limit
        admissible: tuple[str, ...] | None = saved_actions
        return admissible

    def _text(self, observation: Any) -> str:
        text = observation
        if self._words.observe is not None:
            text = self._words.observe(observation)
        if not isinstance(text, str):
            raise OptionError(
                f"expected observations to be texts, found {type(text).__name__}; give a function "
                "that makes a text of one: Wording(observe=...)"
            )
        return str(text)

    def _native_action(self, action: str) -> Any:
        """Return an action as the adapted environment takes it.

        Raises:
            ValueError: The text is no action: the wording raises this, or returns None.
        """
        if self._words.act is None:
            return action
        native_action = self._words.act(action)
        if native_action is None:
            raise ValueError(f"no action: {action!r:.80}")
        return native_action

    def _admissible(self, text: str) -> tuple[str, ...] | None:
        if self._words.admissible is None:
            return None
        actions = self._words.admissible(text, self._last_info)
        return None if actions is None else tuple(actions)


def adapt(
    env: gymnasium.Env[Any, Any],
    canonicalizer: Canonicalizer | Mapping[str, str | Sequence[str]] | None = None,
    words: Wording | None = None,
    *,
    name: str | None = None,
    seeds: Sequence[int] | range = range(100),
    **common: Any,
) -> AdaptedEnv:
    r"""Return an environment of others with state facts, for everything that comap has.

    ``info`` has the keys of `comap.envs.Info`; `comap.worldmodel.ImaginedEnv`, agents,
    `comap.agents.run_episode` and `comap.metrics` take it as they take comap's own.

    Args:
        env: Any ``gymnasium.Env`` whose observations and actions are texts, or are made of texts and
            into texts by functions of `words`.
        canonicalizer: Reads facts from its texts: see `comap.envs.Canonicalizer`. Or a table: where a
            regular expression is found in an observation, its facts are added, with ``{1}`` for the
            first group; with a ``-`` before them they are removed, ``*`` standing for any argument. None
            for no facts: then episodes can be played and imagined, but Delta-F1 is not defined.
        words: What else is known of it; None for nothing.
        name: Its id in records; None for the id with which it was made, else that of ``env.spec``.
        seeds: Of its tasks: ``reset(options={"task": "seeds/3"})`` resets it with seed 3.
        **common: See `comap.envs.TextEnv`.

    Raises:
        OptionError: `env` is no environment, or `canonicalizer` no canonicalizer.

    Example:
        >>> import gymnasium as gym
        >>> table = {r"cell \d+": ["-at(agent, *)", "at(agent, {0})"], "Nothing happens": ()}
        >>> words = Wording(observe=lambda cell: f"cell {cell}",
        ...               act=lambda text: ["left", "down", "right", "up"].index(text))
        >>> env = adapt(gym.make("FrozenLake-v1", is_slippery=False), table, words)
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step("down")
        >>> observation, info["facts"].to_text(), env.step("fly")[4]["invalid_action"]
        ('cell 4', 'at(agent, cell 4)', True)
    """
    return AdaptedEnv(env, canonicalizer, words, name=name, seeds=seeds, **common)


class TextArenaGame(gymnasium.Env[str, str]):
    """One game of TextArena for one player."""

    def __init__(self, game: str, *, max_text_length: int = 32_768, **options: Any):
        with needs_extra("textarena", "TextArena"):
            import textarena
        make: Any = textarena.make
        self._make: Callable[[], Any] = lambda: make(game, **options)
        try:
            self._game: Any = self._make()
        except ValueError as error:
            raise OptionError(f"expected a game of TextArena, found {game!r} ({error})") from error

        self.observation_space = Unicode(max_text_length)
        self.action_space = Unicode(max_text_length)

        # TextArena's games draw from Python's global random numbers: each game here has a state for them.
        self._random_state: Any = random.Random(0).getstate()
        self._running = False
        self._was_played = False
        self._text_before = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        game_seed = int(self.np_random.integers(2**31))
        if self._was_played:  # its wrappers keep what earlier games said
            self._game = self._alone(self._make)
        self._was_played = True

        self._alone(lambda: self._game.reset(num_players=1, seed=game_seed))
        self._running = True
        self._text_before = ""
        return self._new_text(""), {"reason": "", "invalid_move": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not isinstance(action, str):
            raise InvalidAction(f"expected a move (text), found {type(action).__name__}")
        if not self._running:
            raise NoEpisode("expected a running game, found none; call env.reset() first")

        has_ended, _ = self._alone(lambda: self._game.step(action=action))
        if not has_ended:
            info = {"reason": "", "invalid_move": False}
            return self._new_text(action), 0.0, False, False, info

        # Rewards and reasons are by player, and there is one: number 0.
        self._running = False
        text = self._new_text(action)
        rewards, infos = self._game.close()
        game_info = (infos or {}).get(0, {})
        reason = str(game_info.get("reason", ""))
        if reason not in text:
            text = f"{text}\n{reason}".strip()

        reward = float((rewards or {}).get(0, 0.0))
        invalid_move = bool(game_info.get("invalid_move"))
        return text, reward, True, False, {"reason": reason, "invalid_move": invalid_move}

    def _new_text(self, action: str) -> str:
        """Return what the game says that it did not say before, without the player's own move."""
        _, text = self._alone(self._game.get_observation)
        text = str(text)
        new_text = text.removeprefix(self._text_before)
        self._text_before = text

        lines = [line.removeprefix("[GAME] ") for line in new_text.strip("\n").splitlines()]
        if action and lines:
            first_line = lines[0].removeprefix("[Player] ")
            repeats_move = first_line.strip("[]") == action.strip().strip("[]")
            if first_line and repeats_move:
                lines = lines[1:]
        return "\n".join(lines).strip("\n")

    def _alone(self, work: Callable[[], _T]) -> _T:
        """Do work with this game's own random numbers as the global ones."""
        with _RANDOM:
            state_before = random.getstate()
            random.setstate(self._random_state)
            try:
                return work()
            finally:
                self._random_state = random.getstate()
                random.setstate(state_before)
