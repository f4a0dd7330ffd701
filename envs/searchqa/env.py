"""`SearchQAEnv`: questions that are answered by searching."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from ...errors import EngineError, OptionError, check_choice, check_flag, check_number
from ...facts import State
from ...trajectory import Step, Turn
from ..base import Outcome, TextEnv
from ..briefing import Briefing, ReplyForm
from ..generated import warn_of_generated
from ..panel import Panel
from .canonicalizer import SearchQACanonicalizer, has_answered, narrate, narrate_scene, suggested
from .generated import explore, plan
from .protocol import (
    ACTIONS,
    REFUSAL,
    REWARDS,
    STYLES,
    ActionForm,
    Style,
    exact_match,
    is_refusal,
    last_answer,
    read_move,
    read_results,
    refusal_of,
    reward_of,
    write_results,
)
from .questions import Question
from .retriever import Hit, RecalledRetriever, RemoteRetriever, Retriever
from .tasks import RETRIEVERS, SOURCES, choose_retriever, open_tasks, questions_home

_EXPERTS = ("plan", "explore")
_USUAL = (ACTIONS[0], STYLES[0])  # what the briefing is about where options do not change it
_MOST_TURNS, _MOST_HITS = 50, 20


class SearchQAEnv(TextEnv):
    """Questions that are answered by searching, as in Search-R1 and verl-agent.

    ## Description
    A question is asked. In each turn the policy searches a corpus, and is shown the best passages, or
    answers, which ends the episode. Any retriever will do: see `comap.envs.searchqa.retriever`.

    ## Action Space
    ``Unicode``: any text. ``<search>words</search>`` searches, ``<answer>words</answer>`` answers; with
    ``actions="react"`` ``search[words]`` and ``finish[words]``. Thoughts around them are welcome. Of
    several tags Search-R1's style takes the first, verl-agent's the first search. Any other text is
    refused, takes a turn, and sets ``info["invalid_action"]``.

    ## Observation Space
    ``Unicode``: at the start ``Question: ...``; after a search its passages between
    ``<information>`` and ``</information>``, in Search-R1's form or verl-agent's; after the answer
    nothing. What in passages is written like one of these tags is broken up, and a passage is one line.

    ## Starting State
    The question. ``reset(options={"task": id})`` picks it, of any split; otherwise the environment's
    generator does, uniformly from the split's panel.

    ## Rewards
    0 until the end, then what the last answer is worth that the policy itself gave, 0 without one:
    ``em`` (exact match, 0 or 1), ``sub_em``, ``f1``, or ``format`` (Search-R1's with a part for the
    form), after SQuAD's normalization: see `comap.envs.searchqa.protocol`. `invalid_penalty` is taken
    off at each turn whose form was not kept (comap's trainers do so themselves).

    ## Episode End
    *Terminated* by an answer; *truncated* after `turns` turns, or after a fault of the
    retriever (an `EngineError` in ``info["error"]``: no answer in time, or none that can be read).

    ## Information
    See `comap.envs.Info`. ``score`` is 1 if the answer matches exactly, after the end; ``success`` the
    same. ``admissible_actions`` is None, since any search may be of use, or with
    ``admissible_actions=True`` suggestions by question and belief. ``well_formed`` is whether the
    action kept the form; ``retrieved`` has the ids of the passages that the last search showed. Nothing
    in ``info`` comes from the golden answers before the end: see `wanted`.

    ## Arguments
    The constructor's, below.

    ## References
    Jin et al., Search-R1 (2025). Feng et al., GiGPO and verl-agent (2025). Jin et al., FlashRAG (2024).

    ## Version History
    v0: first release.

    ## Task panel
    Ids are the questions' own in a file, and ``<data set>/<id>`` in a folder of data sets: ``nq``,
    ``triviaqa``, ``popqa``, ``hotpotqa``, ``2wikimultihopqa``, ``musique``, ``bamboogle``. There
    ``train`` is NQ and HotpotQA, ``test`` (and ``dev``) what each is evaluated on: the dev files of
    HotpotQA, 2Wiki and MuSiQue, the test files of the others. A file has no splits: unless `split` is
    ``all``, the default, 80, 10 and 10 % of its questions by the hash of their ids are ``train``,
    ``dev`` and ``test``. Without data: a generated encyclopedia of made-up people, towns, works and
    companies, 3,576 articles, and 3,000 questions with one to three hops, split by the thing that
    they begin with; ids begin with ``generated/``.

    ## State facts
    See `comap.envs.searchqa.canonicalizer`, by `SearchQACanonicalizer`: protocol (turns left, queries,
    refusals, the answer) and retrieval (titles shown, how many of them new).

    ## Known deviations from upstream
    Refusals have our words. Passages are cut at 6,000 characters, not at 500 tokens. Search-R1
    generates once more without search after the last turn; here the last turn is the last.
    Search-R1 looks for the answer in the whole text, prompt and passages included, and needs two;
    here it is the policy's own last one. verl-agent shows nothing after an action without tags; in
    its style so do we. Facts name passages by titles, which observations show, and not by ids,
    which they do not. The default corpus
    is no Wikipedia: `data_dir` names an index of one.

    Args:
        split: ``train``, ``dev``, ``test`` or ``all``; None for ``all`` of a file, and else ``train``.
        data_dir: Folder of an index (``comap data build searchqa``), of any kind; for ``hybrid`` a
            folder of several. None looks in ``COMAP_HOME/searchqa/index``.
        questions: File or folder of questions; None looks in ``COMAP_HOME/searchqa/questions``.
        dataset: Of a folder, the data sets to play: a name, names joined by commas, or a list.
        retriever: ``"auto"`` (of the index's kind), ``"fts5"``, ``"tantivy"``, ``"dense"``,
            ``"hybrid"``, the URL of a ``/retrieve`` server (asked as the style's own servers are), a
            `Retriever`, or a function of queries and k.
        topk: How many passages a search shows, 1 to 20.
        turns: How many turns an episode has, 1 to 50.
        actions: ``"tags"`` or ``"react"``.
        style: ``"search_r1"`` or ``"verl"``.
        reward: One of ``"em"``, ``"sub_em"``, ``"f1"``, ``"format"``.
        retrieval_score: Of the reward ``format``: what showing a golden answer is worth.
        invalid_penalty: What is taken off the reward at each turn whose form was not kept.
        timeout: Seconds that a remote retriever may take for a search.
        admissible_actions: Whether `info` suggests actions.
        source: ``"auto"``, ``"official"`` (data that are there) or ``"generated"``.
        generator_seed: Of the generated encyclopedia.
        expert: What `expert_action` knows: ``"plan"`` decomposition and answer, ``"explore"`` what was
            shown.
        **common: See `TextEnv`.

    Raises:
        OptionError: An option is unknown or has a value that it cannot have.
        DataNotFound, DataCorrupt: An index or questions are asked for and missing or broken.
        MissingExtra: The retriever needs a package that is not installed.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/SearchQA-v0", split="test", source="generated")
        >>> observation, info = env.reset(seed=0)
        >>> terminated = False
        >>> while not terminated:
        ...     action = env.unwrapped.expert_action()
        ...     observation, reward, terminated, truncated, info = env.step(action)
        >>> reward, info["success"]
        (1.0, True)
    """

    test_splits: ClassVar[tuple[str, ...]] = ("test",)
    idle_answer: ClassVar[str | None] = REFUSAL
    generated_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"source": "generated"})
    local_options: ClassVar[frozenset[str]] = frozenset(("data_dir", "questions"))
    env_id = "comap/SearchQA-v0"
    info_extras: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"retrieved": (), "well_formed": True}
    )
    canonicalizer: SearchQACanonicalizer = SearchQACanonicalizer()
    briefing = Briefing.of_package(__package__ or "")
    reply_form: ClassVar[ReplyForm] = ReplyForm("searchqa", kind="search")

    def __init__(  # noqa: PLR0913 options of the environment, as gymnasium.make passes them
        self,
        *,
        split: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        questions: str | os.PathLike[str] | None = None,
        dataset: str | Sequence[str] | None = None,
        retriever: Any = "auto",
        topk: int = 3,
        turns: int = 4,
        actions: ActionForm = "tags",
        style: Style = "search_r1",
        reward: str = "em",
        retrieval_score: float = 0.0,
        invalid_penalty: float = 0.0,
        timeout: float = 10.0,
        admissible_actions: bool = False,
        source: str = "auto",
        generator_seed: int = 0,
        expert: str = "plan",
        **common: Any,
    ):
        super().__init__(**common)

        check_choice("actions", actions, ACTIONS)
        check_choice("style", style, STYLES)
        check_choice("reward", reward, REWARDS)
        check_choice("source", source, SOURCES)
        check_choice("expert", expert, _EXPERTS)
        check_number("topk", topk, 1, _MOST_HITS)
        check_number("turns", turns, 1, _MOST_TURNS)
        check_flag("admissible_actions", admissible_actions)
        shares = {"retrieval_score": retrieval_score, "invalid_penalty": invalid_penalty}
        for name, share in shares.items():
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise OptionError(f"{name} must be a number from 0 to 1, not {share!r}")

        names_data = data_dir is not None or questions is not None
        generated = source == "generated"
        if source == "auto":
            generated = not names_data and not questions_home().is_dir()
        if generated and names_data:
            raise OptionError(
                "source='generated' reads no data, found data_dir or questions as well; leave them out"
            )
        if generated and source == "auto":
            warn_of_generated(
                self.env_id, "name questions and an index (questions=..., data_dir=...)"
            )

        dataset_names = dataset.split(",") if isinstance(dataset, str) else dataset or ()
        datasets = [str(name).strip() for name in dataset_names]
        self._tasks = open_tasks(questions, datasets, split, generated, generator_seed)
        self.retriever: Retriever = choose_retriever(
            retriever, data_dir, generated, generator_seed, timeout, style
        )
        self.canonicalizer = SearchQACanonicalizer(turns, actions, style)
        variants = [option for option in (actions, style) if option not in _USUAL]
        self.briefing = Briefing.of_package(__package__ or "", *variants)

        self._form = actions
        self._style = style
        self._reward = reward
        self._retrieval_score = float(retrieval_score)
        self._penalty = float(invalid_penalty)
        self._topk = topk
        self._most_turns = turns
        self._expert_kind = expert
        self._suggests = admissible_actions
        # The step that ends the episode must know that it does: an answer is worth something only then.
        self._limit = turns if self._limit is None else min(turns, self._limit)
        self._longest: int = getattr(self.observation_space, "max_length", 32_768)

        self._wanted: Question | None = None
        self._last_answer: str | None = None
        self._retrieved: tuple[str, ...] = ()
        self._formed = True

    def check_engine(self) -> None:
        """Raise where a retriever is a server that does not answer."""
        if isinstance(self.retriever, RemoteRetriever):
            self.retriever.search(["comap"], 1)  # any query will do

    @property
    def tasks(self) -> Panel:
        """The questions of the split."""
        return self._tasks.panel

    @property
    def wanted(self) -> Question:
        """The question with its golden answers. For checks, not for agents or world models."""
        if self._wanted is None:
            self._refuse_step()
        return self._wanted

    @classmethod
    def predicted_text(cls, step: Step) -> str:
        """Return what a search found; nothing follows the answer."""
        return "" if step.terminated else step.observation

    def settings(self) -> dict[str, str]:
        """Return what changes what is seen: forms, numbers, the retriever's identity."""
        return {
            "actions": self._form,
            "style": self._style,
            "reward": self._reward,
            "topk": str(self._topk),
            "turns": str(self._most_turns),
            "suggestions": str(self._suggests).lower(),
            "retriever": str(self.retriever.identity),
        }

    def fingerprint(self) -> dict[str, str]:
        """Return the settings and what rewards depend on."""
        parts = {"retrieval_score": self._retrieval_score, "invalid_penalty": self._penalty}
        return super().fingerprint() | {name: f"{value:g}" for name, value in parts.items()}

    def expert_action(self) -> str | None:
        """Return the next action of the chosen expert; None before the first reset and at the end."""
        if not self._running or self._wanted is None:
            return None

        turns_left = self._most_turns - self._steps
        if self._expert_kind == "explore":
            return explore(self._wanted.text, self._turns, turns_left, self._form)
        return plan(self._wanted, self._turns, turns_left, self._form)

    def ended(self, state: State) -> bool:
        """Return whether the facts say that an answer was given."""
        return has_answered(state)

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the actions that question and belief suggest, where suggestions are asked for."""
        return suggested(self._goal, state, self._form) if self._suggests else None

    def refused(self, observation: str) -> bool:
        """Return whether this observation answers what is no action."""
        return is_refusal(observation)

    @classmethod
    def state_text(
        cls, goal: str, history: Sequence[Turn], state: State, action: str | None = None
    ) -> str:
        """Return a belief in few words: see `narrate` and, with an action, `narrate_scene`."""
        if action is None:
            return narrate(goal, history, state)
        return narrate_scene(goal, history, state, action)

    @classmethod
    def offline(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options without files, and in the place of a server what recalls its answers."""
        offline_options = super().offline(options)
        if offline_options.get("retriever", "auto") not in RETRIEVERS:
            offline_options["retriever"] = RecalledRetriever()
        return offline_options

    def recall(self, steps: Sequence[Step]) -> frozenset[int]:
        """Take what a server found from the observations that showed it."""
        if not isinstance(self.retriever, RecalledRetriever):
            return frozenset()

        recalled = set()
        for step in steps:
            move = read_move(step.action, self._form, self._style)
            passages = read_results(step.observation)
            if move.kind == "search" and passages is not None:
                self.retriever.learn(move.text, passages)
                recalled.add(step.t)
        return frozenset(recalled)

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        # A task that is not there must not leave the question before it.
        self._wanted = None
        question = self._tasks.question(task)
        self._wanted = question
        self._last_answer = None
        self._retrieved = ()
        self._formed = True
        return question.split, question.text, Outcome(f"Question: {question.text}")

    def _act(self, action: str) -> Outcome:
        move = read_move(action, self._form, self._style)
        answer = last_answer(action, self._form)
        if answer is not None:
            self._last_answer = answer
        self._formed = move.formed
        self._retrieved = ()

        observation = ""
        if move.kind == "search":
            hits = self._search(move.text)
            self._retrieved = tuple(hit.id for hit in hits)
            observation = write_results(hits, self._style)
        elif not move.kind:
            observation = refusal_of(self._form, self._style)

        # The last turn ends the episode, whatever it was: then the last answer so far counts, which
        # may stand in an action that was carried out as a search.
        answered = move.kind == "answer"
        over = answered or (self._limit is not None and self._steps >= self._limit)

        # `0.0 - penalty`, since `-penalty` is -0.0 where there is none, and is written otherwise.
        reward = 0.0 if move.formed else 0.0 - self._penalty
        right = False
        if over:
            golden = self.wanted.golden
            right = self._last_answer is not None and exact_match(self._last_answer, golden)
            reward += reward_of(
                self._reward,
                self._last_answer,
                golden,
                [*self._turns, Turn(action, observation)],
                self._form,
                self._style,
                self._retrieval_score,
            )
        return Outcome(observation, float(reward), float(right), right, answered, not move.kind)

    def _search(self, query: str) -> list[Hit]:
        """Return the best passages, not more text than an observation may have."""
        answers = self.retriever.search([query], self._topk)
        if len(answers) != 1 or not all(isinstance(hit, Hit) for hit in answers[0]):
            raise EngineError(
                f"expected one list of Hit from {self.retriever.identity}, found others"
            )

        # A character may take two in JSON; 400 of each passage are for its title and what is around.
        room = max((self._longest - 200) // (2 * self._topk) - 400, 40)
        return [hit._replace(text=hit.text[:room]) for hit in answers[0][: self._topk]]

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        info["retrieved"] = self._retrieved
        info["well_formed"] = self._formed
        return info

    def _agrees(self, outcome: Outcome) -> bool:
        right = self._last_answer is not None and exact_match(self._last_answer, self.wanted.golden)
        # A right answer counts at the end only: before it there may be one, and no success yet.
        return right >= outcome.success == outcome.score

    def _save(self) -> Any:
        return self._last_answer, self._retrieved, self._formed, self._outcome.admissible

    def _load(self, saved: Any) -> tuple[str, ...] | None:
        self._last_answer, self._retrieved, self._formed, admissible = saved
        return None if admissible is None else tuple(admissible)
