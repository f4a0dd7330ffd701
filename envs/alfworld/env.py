"""`ALFWorldEnv`: household tasks in text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from ...errors import OptionError, check_choice
from ...facts import Fact, State
from ..base import Outcome, TextEnv
from ..briefing import Briefing, ReplyForm
from ..generated import is_generated
from ..panel import Panel
from .canonicalizer import ALFWorldCanonicalizer, admissible_of
from .describe import narrate
from .engine import NativeEngine
from .engines import ENGINES, Engine, make_engine
from .expert import explore, plan
from .game import Game
from .generate import family_of
from .goal import DIALECTS, NOTHING_HAPPENS, Dialect, Goal
from .tasks import open_source

_EXPERTS = ("plan", "explore")
_USUAL_DIALECT = DIALECTS[0]


class ALFWorldEnv(TextEnv):
    """Household tasks in text, as in ALFWorld (Shridhar et al. 2021), without its dependencies.

    ## Description
    The agent stands in a room, finds things, opens and closes receptacles, carries one thing at a
    time, cleans, heats, cools, slices, and turns lamps on, to reach a goal such as "put a clean mug
    in coffeemachine". There are six families of goals. The native engine reads the official
    ``game.tw-pddl`` files and answers as the TextWorld engine does, to the byte.

    ## Action Space
    ``Unicode``: any text. Commands are ``go to R``, ``open R``, ``close R``, ``take O from R``,
    ``move O to R`` (``put O in/on R`` in the older dialect), ``examine X``, ``use O``, ``clean O with
    R``, ``heat O with R``, ``cool O with R``, ``slice O with O``, ``look``, ``inventory``, ``help``.
    A command must equal an admissible one exactly, blanks around it aside; any other text is
    answered "Nothing happens." and counts as a step.

    ## Observation Space
    ``Unicode``: the game's answer. The first one lists the room's receptacles and states the task.

    ## Starting State
    ``reset(options={"task": id})`` picks the game; otherwise the environment's generator does,
    uniformly from the split.

    ## Rewards
    1 at the step that wins, else 0.

    ## Episode End
    *Terminated* when the goal is true; *truncated* after 50 steps (``max_episode_steps`` of
    ``gym.make``) or after a fault of the engine.

    ## Information
    See `comap.envs.Info`. ``score`` is the share of ALFRED's goal conditions that are met;
    ``admissible_actions`` are all commands that do something, sorted. For checks, not for agents,
    ``env.unwrapped.game`` has the goal (``game.goal.family`` is the task type) and the walkthrough
    (``game.problem.walkthrough``).

    ## Arguments
    The constructor's, below.

    ## References
    Shridhar et al., ALFWorld (ICLR 2021); Shridhar et al., ALFRED (CVPR 2020); Cote et al.,
    TextWorld (2018).

    ## Version History
    v0: first release.

    ## Task panel
    Official: train 3,553, valid_seen 140, valid_unseen 134 games (and valid_train 200), ids
    ``<split>/<task folder>/<trial folder>``. Without data on the machine: generated games of the
    same three splits, ids ``generated/<split>/<difficulty>/<seed>-<number>``, unlimited.

    ## State facts
    ``exists(R) at(agent, R) seen(R) open(R) closed(R) in(O, R) near(O, R) holding(O) clean(O) hot(O)
    cool(O) sliced(O) lit(O)``: what follows from the text so far, by `ALFWorldCanonicalizer`.
    `engine_facts` has what is true beyond that.

    ## Known deviations from upstream
    Deviations from upstream: ``terminated`` and ``truncated`` are distinguished; an episode ends when it
    is won (TextWorld goes on); facts are beliefs; `domain_randomization` is not offered.
    Quirks of upstream that are kept: one cannot go to a receptacle at one's own location, nor to
    any other that shares it; clean, heat and cool need the appliance to be here, its door does not
    matter; receptacles have no capacity; ``use`` always turns on; only a held thing can be examined;
    a thing may be in two receptacles and stay in one while it is carried; "Next to it" lists things
    that were moved between receptacles at one place, once for each; a container shows its first
    contents for ever; things that fit nowhere stay in the hand, and the game cannot be won any more.

    Args:
        split: ``"train"``, ``"valid_seen"``, ``"valid_unseen"`` or (official only) ``"valid_train"``.
        data_dir: Folder that holds ``json_2.1.1`` (or ``json_2.1.2``, ``json_2.1.3``); None looks in
            ``COMAP_HOME/alfworld`` and in ``ALFWORLD_DATA``.
        engine: ``"native"``, or ``"textworld"`` for the upstream engine (extra ``alfworld``).
        dialect: ``"move"`` (alfworld 0.4) or ``"put"`` (up to 0.3; agents of that time expect it).
        expert: What `expert_action` knows: ``"plan"`` everything, ``"explore"`` what was observed.
        source: ``"auto"``, ``"official"`` or ``"generated"`` games.
        difficulty: Of generated games: ``"easy"``, ``"normal"`` or ``"hard"``.
        generator_seed: Of generated games.
        **common: See `TextEnv`.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
        >>> observation, info = env.reset(seed=0)
        >>> while not info["success"]:
        ...     action = env.unwrapped.expert_action()
        ...     observation, reward, terminated, truncated, info = env.step(action)
        >>> terminated, reward, info["score"]
        (True, 1.0, 1.0)
    """

    test_splits: ClassVar[tuple[str, ...]] = ("valid_seen", "valid_unseen")
    generated_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"source": "generated"})
    env_id = "comap/ALFWorld-v0"
    canonicalizer: ALFWorldCanonicalizer = ALFWorldCanonicalizer()
    state_text = staticmethod(narrate)
    briefing = Briefing.of_package(__package__ or "")
    reply_form: ClassVar[ReplyForm] = ReplyForm("alfworld", tells_goal=False)
    look_ahead_limit: ClassVar[int] = 5

    def __init__(
        self,
        *,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        engine: str = "native",
        dialect: Dialect = "move",
        expert: str = "plan",
        source: str = "auto",
        difficulty: str = "normal",
        generator_seed: int = 0,
        **common: Any,
    ):
        super().__init__(**common)

        check_choice("dialect", dialect, DIALECTS)
        check_choice("engine", engine, ENGINES)
        check_choice("expert", expert, _EXPERTS)
        # The extra installs alfworld 0.4, whose games are of the newer dialect.
        if engine != "native" and dialect != "move":
            raise OptionError("engine='textworld' has no other dialect than 'move'")

        self._source = open_source(split, data_dir, source, difficulty, generator_seed)
        self._engine_name = engine
        self._dialect = dialect
        self._expert = expert
        self._engine: Engine | None = None
        self._stated_goal: Goal | None = None

        self.canonicalizer = ALFWorldCanonicalizer(dialect)
        if dialect != _USUAL_DIALECT:
            self.briefing = Briefing.of_package(__package__ or "", dialect)

    @property
    def tasks(self) -> Panel:
        """The games of the split."""
        return self._source.panel()

    @property
    def game(self) -> Game:
        """The game being played: its tables, goal and walkthrough. For checks, not for agents."""
        return self._playing().game

    def engine_facts(self) -> frozenset[Fact]:
        """Return everything that is true, as the engine knows it. For checks, not for agents."""
        return self._playing().facts()

    @classmethod
    def task_type(cls, task: str, split: str = "") -> str:
        """Return the family of a game; empty where its id does not say it."""
        if is_generated(task):
            return family_of(task)
        # <split>/<family>-<thing>-<movable>-<place>-<scene>/<trial>, as official folders are named.
        parts = task.split("/")
        return parts[1].partition("-")[0] if len(parts) == 3 else ""

    @classmethod
    def action_menu(cls, actions: Sequence[str]) -> tuple[str, ...]:
        """Return the commands without ``help``, which only lists the forms of commands."""
        return tuple(action for action in actions if action != "help")

    def settings(self) -> dict[str, str]:
        """Return engine and dialect."""
        return {"engine": self._engine_name, "dialect": self._dialect}

    def fingerprint(self) -> dict[str, str]:
        """Return the settings, which games these are, and a hash of their bytes."""
        return super().fingerprint() | self._source.fingerprint()

    def expert_action(self) -> str | None:
        """Return the next command of the chosen expert; None where it knows of no way on.

        The expert ``"plan"`` knows the shortest way from any state, so None means that the game
        cannot be won any more, or is won.
        """
        if self._expert == "explore":
            return self.expert_from(self._state, self._outcome.admissible)

        commands = plan(self.native_engine())
        return commands[0] if commands else None

    def expert_from(self, state: State, admissible: tuple[str, ...] | None) -> str | None:
        """Return the next command of the expert that knows only a belief, real or imagined.

        Args:
            state: The belief.
            admissible: The commands that would do something, or None where that is not known.
        """
        if self._stated_goal is None:  # the task's sentence is none that `Goal` reads
            return None
        return explore(self._stated_goal, state, admissible, self._dialect)

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts say that the task is solved."""
        conditions_met, total = self.game.goal.conditions(state)
        return conditions_met == total

    def score_of(self, state: State) -> float | None:
        """Return the share of goal conditions that the facts meet."""
        conditions_met, total = self.game.goal.conditions(state)
        return conditions_met / total

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the commands that the facts, and what is known of kinds of things, allow."""
        return admissible_of(state, self._dialect)

    def refused(self, observation: str) -> bool:
        """Return whether the observation is the answer to a command that did nothing."""
        return observation.lstrip().startswith(NOTHING_HAPPENS)

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        game, path = self._source.game(task, self._dialect)

        # To load a game takes TextWorld a second; the engine of the game before may play it again.
        if self._engine is None or self._engine.game is not game:
            self.close()
            self._engine = make_engine(self._engine_name, game, path)

        observation = self._engine.start()

        # From the sentence that agents read, not from the game's file: `explore` knows no more than they.
        self._stated_goal = Goal.from_sentence(game.problem.task)
        return self._source.split, game.problem.task, self._outcome_of(observation, valid=True)

    def _act(self, action: str) -> Outcome:
        return self._outcome_of(*self._playing().act(action))

    def _outcome_of(self, observation: str, valid: bool) -> Outcome:
        """Return an answer of the engine with what the engine's state says of reward and end."""
        engine = self._playing()
        conditions_met, total = engine.conditions()
        is_won = conditions_met == total
        admissible = engine.admissible()
        score = conditions_met / total
        return Outcome(observation, float(is_won), score, is_won, is_won, not valid, admissible)

    def _save(self) -> dict[str, Any]:
        return self._playing().save()

    def _load(self, saved: Any) -> tuple[str, ...]:
        engine = self._playing()
        engine.load(saved)
        return engine.admissible()

    def _agrees(self, outcome: Outcome) -> bool:
        conditions_met, total = self._playing().conditions()
        return (outcome.score, outcome.success) == (conditions_met / total, conditions_met == total)

    def _playing(self) -> Engine:
        """Return the engine of the running game.

        Raises:
            NoEpisode: There is none.
        """
        if self._engine is None:
            self._refuse_step()
        return self._engine

    def native_engine(self) -> NativeEngine:
        """Return a native engine in the state of this game. For checks, not for agents."""
        return self._playing().native()
