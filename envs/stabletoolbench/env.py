"""`StableToolBenchEnv`: questions that are answered by calling functions, and the calls of one episode."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ...errors import OptionError, check_choice, check_flag, check_number
from ...facts import State
from ...spaces import Unicode
from ...trajectory import Step, Turn
from ..base import Outcome, TextEnv
from ..briefing import Briefing
from ..panel import Panel
from .apps.world import Marks
from .backends import Chain, GeneratedTools, Overlay, Recalled, Request, open_chain
from .calls import Call, canonical_json, digest, parse_call, read_answer, share_right, write_call
from .canonicalizer import (
    FORMATS,
    MIN_LENGTH,
    REFUSALS,
    ToolCanonicalizer,
    calls_made,
    error_kind,
    first_observation,
    narrate,
    observation_of,
    read_observation,
    suggested,
)
from .functions import COMPAT, FINISH, FINISH_OFFER, Offer, coerced, named, offers, problem_of
from .tasks import GeneratedTask, cells, open_tasks

_ACCEPTED = "Answer received."
_GIVEN_UP = "Given up."
_LONGEST_NAME = 100


class Done(NamedTuple):
    """A call that was made.

    Attributes:
        name: The function's name as the agent wrote it; empty for what was no call.
        arguments: As they were sent to the tool.
        status: ``ok`` or the kind of error: see `comap.envs.stabletoolbench.canonicalizer.ERROR_KINDS`.
        source: Which backend answered; empty where none was asked.
        faults: What went wrong in backends.
    """

    name: str
    arguments: Mapping[str, Any]
    status: str
    source: str = ""
    faults: tuple[str, ...] = ()


class Reply(NamedTuple):
    """The answer to a call: error, response, and whether it was refused before any tool saw it."""

    error: str
    response: Any
    refused: bool = False


class Saved(NamedTuple):
    """A moment of a session; nothing in it changes."""

    done: tuple[Done, ...]
    finished: str
    answer: str
    marks: Marks | None


class Session:
    """The calls of one episode."""

    def __init__(
        self,
        offers: Sequence[Offer],
        chain: Chain,
        compat: str = "strict",
        task: GeneratedTask | None = None,
        tools: GeneratedTools | None = None,
    ):
        self.offers = tuple(offers)
        self.chain = chain
        self.compat = compat
        self.task = task
        self.tools = tools
        self.done: list[Done] = []
        self.finished = (
            ""  # what ``Finish`` was called with: "give_answer" or "give_up_and_restart"
        )
        self.answer = ""

    def act(self, action: str) -> Reply:
        """Make the call that an action is, record it, and return what comes back."""
        call = parse_call(action)
        if call is None:
            error = 'Action not understood: write {"name": FUNCTION, "arguments": {...}}'
            return self._refuse(Call("", {}), error)
        if call.problem:
            return self._refuse(call, f"Tool input parse error: {call.problem[:200]}")
        if call.name == FINISH:
            return self._finish(call)
        offer = named(self.offers, call.name, self.compat)
        if offer is None:
            return self._refuse(call, f"No such function name: {call.name[:_LONGEST_NAME]}")

        # Upstream checks nothing: a backend gets the arguments as they are.
        is_strict = self.compat == "strict"
        arguments: Mapping[str, Any] = call.arguments
        if is_strict:
            arguments = coerced(offer, arguments)
            if problem := problem_of(offer, arguments):
                return self._refuse(call, problem)

        # A backend may refuse a call as well: what is unchecked is checked by the generated tools.
        request = Request(offer.category, offer.tool, offer.api, arguments, offer, is_strict)
        hit, faults = self.chain.ask(request)
        kind_of_error = error_kind(hit.error)
        name = call.name[:_LONGEST_NAME]
        self.done.append(Done(name, arguments, kind_of_error or "ok", hit.source, faults))
        return Reply(hit.error, hit.response, refused=kind_of_error in REFUSALS)

    def share(self) -> float:
        """Return the share of a generated task that is right, once it is finished by an answer."""
        if self.task is None or self.tools is None or self.finished != "give_answer":
            return 0.0
        fields = read_answer(self.answer)
        changes = cells(self.tools.ledger)
        return share_right(self.task.answer, fields, self.task.effects, changes)

    def save(self) -> Saved:
        """Return this moment; the state of the tools is part of it, that of backends is not."""
        marks = None if self.tools is None else self.tools.ledger.save()
        return Saved(tuple(self.done), self.finished, self.answer, marks)

    def load(self, saved: Saved) -> None:
        """Go back to a moment that `save` returned."""
        self.done = list(saved.done)
        self.finished = saved.finished
        self.answer = saved.answer
        if self.tools is not None and saved.marks is not None:
            self.tools.ledger.load(saved.marks)

    def _refuse(self, call: Call, error: str) -> Reply:
        """Record a call that reaches no tool, and return its error."""
        self.done.append(Done(call.name[:_LONGEST_NAME], {}, error_kind(error)))

        # It takes its time all the same: the tools' clock, by which limits of rates pass, counts calls.
        if self.tools is not None:
            self.tools.ledger.clock += 1
        return Reply(error, "", refused=True)

    def _finish(self, call: Call) -> Reply:
        """Check and record a call of ``Finish``, and keep its answer."""
        # The schema wants a text. Models also write the answer as the object that it stands for.
        arguments = dict(call.arguments)
        answer = arguments.get("final_answer")
        if isinstance(answer, dict | list):
            arguments["final_answer"] = canonical_json(answer)
        arguments = coerced(FINISH_OFFER, arguments)

        # The schema, as upstream's, does not require ``final_answer``: who gives up has none.
        problem = problem_of(FINISH_OFFER, arguments)
        gives_answer = arguments.get("return_type") == "give_answer"
        if not problem and gives_answer and "final_answer" not in arguments:
            problem = "Missing required parameter: final_answer"
        if problem:
            return self._refuse(call, problem)

        self.finished = arguments["return_type"]
        self.answer = arguments.get("final_answer", "")
        self.done.append(Done(FINISH, arguments, "ok"))
        return Reply("", _ACCEPTED if self.finished == "give_answer" else _GIVEN_UP)


Judging: TypeAlias = Callable[[str, str, Sequence[Done]], float]
"""Judges a query, its final answer and its calls: 1 solved, 0.5 unsure, 0 unsolved."""


class StableToolBenchEnv(TextEnv):
    """Tool use as in StableToolBench (Guo et al. 2024), with generated tools where no data is here.

    ## Description
    A question is to be answered by calling functions, which answer with an error and a response, and
    then ``Finish``. The official queries offer functions of real web services, answered from a cache of
    responses and whatever else is configured. Generated tasks offer functions of thirteen small
    programs with state, in six categories: flights, hotels, orders, inventory, a calendar, contacts,
    files, exchange rates, a bank, weather, geography, music and a library. They have pages, want
    identifiers looked up first, return other units than those asked for, limit rates, and refuse what
    conflicts; what calls change stays changed.

    ## Action Space
    ``Unicode``: any text. A call in OpenAI's form (``{"name": ..., "arguments": {...}}``, also within
    ``function``, ``function_call``, ``tool_calls`` or ``<tool_call>`` tags), in the ReAct form
    (``Action: name`` and ``Action Input: {...}``) or as ``name({...})``. Arguments are held against
    the function's JSON schema; texts that are numbers are taken for numbers where these are wanted,
    and numbers for texts. Other text, unknown functions and wrong arguments are answered with an
    error, count as calls, and set ``info["invalid_action"]``. ``Finish`` takes
    ``return_type``, ``give_answer`` or ``give_up_and_restart``, and ``final_answer``.

    ## Observation Space
    ``Unicode``: first the task, the functions, and how many calls are left; then the JSON text of
    ``{"error": ..., "response": ...}``, at most ``max_observation_length`` characters: what is longer
    loses items of lists and ends of texts and is marked ``"truncated": true``.

    ## Starting State
    No call was made. ``reset(options={"task": id})`` picks the task; otherwise the environment's
    generator does, uniformly from the split's panel.

    ## Rewards
    0 until ``Finish``. Then 1 where a generated task's answer is right and what was to be changed is
    changed and nothing else, 0 otherwise; for an official query, what `judge` says, 0 without a judge.

    ## Episode End
    *Terminated* by ``Finish``; *truncated* when ``max_calls`` calls were made, or after a fault.

    ## Information
    See `comap.envs.Info`. ``score`` is, after ``Finish``, the share of answer fields and changes that
    are right, or what the judge says; ``success`` is a score of 1. ``tool_source`` is the backend that
    answered: ``local`` (a generated tool), ``cache``, ``live``, ``sim`` or ``none``; empty where none
    was asked. ``tool_status`` is ``ok`` or the kind of error, ``tool_faults`` what failed in backends.
    Records of episodes keep source and faults: see `comap.trajectory.Step.env_info`.
    ``admissible_actions`` is None, since any call may be made; with ``admissible_actions=True`` it
    lists calls that the belief suggests. For checks, not for agents: ``env.unwrapped.session``.

    ## Arguments
    The constructor's, below.

    ## References
    Guo et al., StableToolBench: Towards Stable Large-Scale Benchmarking on Tool Learning of Large
    Language Models (2024); Qin et al., ToolLLM (2023), whose queries and interface it has.

    ## Version History
    v0: first release.

    ## Task panel
    Official ids are ``<group>/<query_id>``, splits are ToolBench's six groups and ``all``: 765 queries
    where all files are there; there is no ``train``, which with ``source="auto"`` and files found in
    ``COMAP_HOME`` is the generated one. Without official files: generated tasks, ids
    ``generated/<split>/<number>``, 400 in ``train`` and 100 in each group. Of these, G1 is about one
    tool, G2 about two of a category, G3 about several categories; ``_instruction`` asks in words that
    ``train`` never uses, ``_tool`` is about tools (files, library) and ``_category`` about a category
    (weather and geography) that ``train`` never offers for a task.

    ## State facts
    By `ToolCanonicalizer`: functions, calls, their status,
    what they returned and changed, identifiers seen, the budget, the answer.

    ## Known deviations from upstream
    With ``compat="strict"``: functions without upstream's defects (see `functions`); calls are matched
    by the whole name and checked, where upstream takes any end of a name; observations stay JSON,
    where upstream cuts the text. ``compat="reference"`` brings these back. In both: descriptions and
    messages are in words of our own; giving up ends the episode, where upstream may restart; nobody
    waits two seconds a call; ``max_calls`` counts calls, not nodes of a tree; the cache is never
    written to, and finds equal arguments in any order; status codes are words. SoPR, SoWR and process
    metrics are in `comap.envs.stabletoolbench.scoring`; numbers of other judges, caches or simulators
    cannot be compared. Generated tasks are no part of StableToolBench.

    Args:
        split: One of ToolBench's groups, such as ``G1_instruction``, or ``all``; generated tasks also
            have ``train``.
        data_dir: Folder with ``test_instruction/`` and, if any, ``tool_response_cache/``; None looks in
            ``COMAP_HOME/stabletoolbench``.
        source: ``"auto"``, ``"official"``, ``"generated"``, or ``"mixed"``: generated ``train``, and
            official groups.
        compat: ``"strict"``, without upstream's defects, or ``"reference"``, with them.
        max_calls: How many calls an episode has, ``Finish`` included.
        max_observation_length: Most characters of a call's result; a longer one is cut.
        functions_as: ``"signatures"`` shows each function on a line, ``"json"`` its whole schema.
        admissible_actions: Whether to list suggested calls.
        live_url: A ``/virtual`` server to ask what the cache does not have; None for none.
        simulator: A language model that makes up what no other backend answers: its name as for
            ``comap run --model``, or an object; None for none.
        overlay: File that keeps what live server and simulator answered, so that they are asked but
            once; None for one in ``COMAP_HOME`` where either is used.
        timeout: Seconds that a live server or simulator may take for one try.
        retries: How often each is asked again after a fault.
        judge: Judges final answers to official queries: see `Judging`.
        generator_seed: Of generated tasks.
        **common: See `TextEnv`.

    Raises:
        OptionError: An option has a value that it cannot have.
        DataNotFound, DataCorrupt: Official files are missing or broken.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/StableToolBench-v0", split="G1_instruction", source="generated")
        >>> observation, info = env.reset(seed=0)
        >>> terminated = False
        >>> while not terminated:
        ...     action = env.unwrapped.expert_action()
        ...     observation, reward, terminated, truncated, info = env.step(action)
        >>> reward, info["success"], observation
        (1.0, True, '{"error": "", "response": "Answer received."}')
    """

    test_splits: ClassVar[tuple[str, ...]] = ("G1_instruction", "G1_tool", "G3_instruction")
    idle_answer: ClassVar[str | None] = '{"error": "", "response": ""}'
    generated_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"source": "generated"})
    local_options: ClassVar[frozenset[str]] = frozenset(
        ("data_dir", "live_url", "simulator", "overlay", "timeout", "retries", "judge")
    )
    env_id = "comap/StableToolBench-v0"
    info_extras: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"tool_source": "", "tool_status": "", "tool_faults": ()}
    )
    info_kept: ClassVar[tuple[str, ...]] = ("tool_source", "tool_faults")
    canonicalizer: ToolCanonicalizer = ToolCanonicalizer()
    briefing = Briefing.of_package(__package__ or "")

    def __init__(  # noqa: PLR0913 options of the environment, as gymnasium.make passes them
        self,
        *,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        source: str = "auto",
        compat: str = "strict",
        max_calls: int = 20,
        max_observation_length: int = 1024,
        functions_as: str = "signatures",
        admissible_actions: bool = False,
        live_url: str | None = None,
        simulator: Any = None,
        overlay: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
        retries: int = 1,
        judge: Judging | None = None,
        generator_seed: int = 0,
        **common: Any,
    ):
        super().__init__(**common)
        check_choice("compat", compat, COMPAT)
        check_choice("functions_as", functions_as, FORMATS)
        check_number("max_calls", max_calls, 1, 999_999)
        check_number("max_observation_length", max_observation_length, MIN_LENGTH, 30_000)
        check_flag("admissible_actions", admissible_actions)
        if judge is not None and not callable(judge):
            raise OptionError(f"judge must be callable or None, not {type(judge).__name__}")
        self._tasks = open_tasks(data_dir, split, source, generator_seed)

        self._compat = compat
        self._max_calls = max_calls
        self._limit = max_calls if self._limit is None else min(max_calls, self._limit)
        self._functions_as = functions_as
        self._suggests = admissible_actions
        self._judge = judge
        self._backends = open_chain(
            self._tasks.folder, live_url, simulator, overlay, timeout, retries
        )
        self._recalled = Recalled(())
        self._session: Session | None = None
        self._score = 0.0

        # With compat="reference" a text that was cut gets three dots, as upstream's does.
        assert isinstance(self.observation_space, Unicode)
        self._max_text_length = self.observation_space.max_length
        self._longest_result = min(
            max_observation_length, max(self._max_text_length - 3, MIN_LENGTH)
        )

    @property
    def tasks(self) -> Panel:
        """The tasks of the split."""
        return self._tasks.panel

    @property
    def session(self) -> Session:
        """The calls of this episode. For checks, not for agents."""
        if self._session is None:
            self._refuse_step()
        return self._session

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The functions of this episode, ``Finish`` last, as OpenAI's function schemas."""
        return [offer.schema() for offer in (*self.session.offers, FINISH_OFFER)]

    def settings(self) -> dict[str, str]:
        """Return what changes what is seen: rules, lengths, the backends."""
        return {
            "compat": self._compat,
            "max_calls": str(self._max_calls),
            "max_observation_length": str(self._longest_result),
            "functions_as": self._functions_as,
            "admissible_actions": str(self._suggests).lower(),
            "tasks": "generated" if self._tasks.folder is None else "official",
            "generator_seed": str(self._tasks.seed),
            "backends": ",".join(backend.name for backend in self._backends),
        }

    def fingerprint(self) -> dict[str, str]:
        """Return the settings, and the SHA-256 of what the overlay holds."""
        fingerprint = super().fingerprint()
        for backend in self._backends:
            if isinstance(backend, Overlay):
                fingerprint["overlay"] = backend.sha256()
        return fingerprint

    def expert_action(self) -> str | None:
        """Return the next call of a right plan for a generated task; None for an official query."""
        return self.expert_from(self._state, None) if self._running else None

    def expert_from(self, state: State, admissible: tuple[str, ...] | None) -> str | None:
        """Return the first call of the plan that a belief does not know to have gone well."""
        task = None if self._session is None else self._session.task
        if task is None or any(fact[0] == "finished" for fact in state.facts):
            return None

        # Facts have a call's arguments in full only as a digest.
        calls_done = calls_made(state)
        for name, arguments in task.plan:
            if (name.lower(), digest(arguments)) not in calls_done:
                return write_call(name, arguments)

        answer = canonical_json(task.answer)
        return write_call(FINISH, {"return_type": "give_answer", "final_answer": answer})

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts show a right answer and changes; None for official queries."""
        share = self.score_of(state)
        return None if share is None else share == 1.0

    def score_of(self, state: State) -> float | None:
        """Return the share of a generated task that the facts show to be right."""
        task = None if self._session is None else self._session.task
        if task is None:
            return None
        if ("finished", "give_answer") not in state.facts:
            return 0.0

        # Predicted facts may have any length; those of a wrong one say nothing.
        fields: dict[str, str] = {}
        changes: dict[tuple[str, str, str], str] = {}
        for fact in state.facts:
            if fact[0] == "answer_field" and len(fact) == 3:
                _, name, value = fact
                fields[name] = value
            elif fact[0] == "db" and len(fact) == 5:
                _, table, key, column, value = fact
                changes[table, key, column] = value
        return share_right(task.answer, fields, task.effects, changes)

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the calls that the facts suggest, where they are listed."""
        if not self._suggests or self._session is None:
            return None
        if ("budget", "0") in state.facts or any(fact[0] == "finished" for fact in state.facts):
            return ()
        return suggested(self._goal, self._session.offers, state)

    def refused(self, observation: str) -> bool:
        """Return whether this observation is an error of a call that reached no tool."""
        parts = read_observation(observation)
        if parts is None:
            return False
        error, _, _ = parts
        return error_kind(error) in REFUSALS

    @classmethod
    def state_text(
        cls, goal: str, history: Sequence[Turn], state: State, action: str | None = None
    ) -> str:
        """Return a belief in few words: see `narrate`."""
        return narrate(goal, history, state, action)

    def recall(self, steps: Sequence[Step]) -> frozenset[int]:
        """Take what live server and simulator answered, or failed to, from the record."""
        self._recalled = Recalled(steps)
        return frozenset(self._recalled.texts)

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        self._session = None
        self._score = 0.0

        generated_task: GeneratedTask | None = None
        tools: GeneratedTools | None = None
        if self._tasks.folder is None:
            generated_task = self._tasks.generated(task)
            split = generated_task.split
            record = generated_task.record
            tools = GeneratedTools(generated_task.world.ledger())
        else:
            split, record = self._tasks.official(task)

        # A generated task has its functions at hand, in their strict form: none are made anew.
        if generated_task is not None and self._compat == "strict":
            task_offers = generated_task.offers
        else:
            task_offers = offers(record, self._compat)

        goal = " ".join(str(record["query"]).split())
        text = first_observation(goal, task_offers, self._max_calls, self._functions_as)

        # What generated tools answer follows from the task; of others a record may be all there is.
        chain = Chain([tools or self._recalled, *self._backends])
        self._session = Session(task_offers, chain, self._compat, generated_task, tools)
        return split, goal, Outcome(text[: self._max_text_length])

    def _act(self, action: str) -> Outcome:
        session = self.session
        self._recalled.set_step(self._steps)
        reply = session.act(action)

        # A recalled text is taken to the letter: what it was cut from is not in the record.
        text = self._recalled.texts.get(self._steps)
        if not text:
            text = observation_of(reply.error, reply.response, self._longest_result, self._compat)

        # A generated task is worth nothing unless all is right; a judge's half point counts.
        if session.finished:
            self._score = self._judge_answer()
        success = self._score == 1.0
        reward = self._score if session.task is None else float(success)
        return Outcome(
            text,
            reward=reward,
            score=self._score,
            success=success,
            terminated=bool(session.finished),
            invalid=reply.refused,
        )

    def _agrees(self, outcome: Outcome) -> bool:
        # A judge is not asked again: its verdict is part of what `_load` brought back.
        score = self._score if self.session.task is None else self.session.share()
        return (outcome.score, outcome.success) == (score, score == 1.0)

    def _judge_answer(self) -> float:
        """Return the score of the final answer: the share that is right, or the judge's verdict."""
        session = self.session
        if session.task is not None:
            return session.share()
        if self._judge is None or session.finished != "give_answer" or not session.answer.strip():
            return 0.0

        verdict = float(self._judge(self._goal, session.answer, tuple(session.done)))
        if not 0.0 <= verdict <= 1.0:
            raise ValueError(f"expected a verdict from 0 to 1 of the judge, found {verdict!r}")
        return verdict

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        if self._session is not None and self._session.done and self._steps:
            last = self._session.done[-1]
            info["tool_source"] = last.source
            info["tool_status"] = last.status
            info["tool_faults"] = last.faults
        return info

    def _save(self) -> Any:
        return (self.session.save(), self._score, self._outcome.admissible)

    def _load(self, saved: Any) -> tuple[str, ...] | None:
        admissible: tuple[str, ...] | None
        saved_session, score, admissible = saved
        self.session.load(saved_session)
        self._score = score
        return admissible
