"""What episodes ask for, and who answers: `EnvPool`, `EnvSlot`, `RequestBatcher`.

An `EnvSlot` is an environment on which a runner plays one episode after another, an `EnvPool` all those of
a run. A `RequestBatcher` answers the requests of many episodes in as few batches as there are kinds.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium

from ..envs import Snapshot, TextEnv, restore, snapshot
from ..envs.registry import not_ours
from ..errors import CoMapError, EngineError, LanguageModelError, OptionError
from ..lm import (
    Completion,
    Generate,
    LanguageModel,
    LMReply,
    LMRequest,
    NextWord,
    Score,
    Scores,
    WordProbabilities,
    answer,
)
from ..lm.base import KINDS, StreamingLanguageModel
from ..trajectory import Call
from ..worldmodel import (
    CachedWorldModel,
    Grounded,
    Prediction,
    Query,
    WorldModel,
    ask,
    asked_model,
    create_world_model,
    query_about,
)
from ..worldmodel.language import LanguageWorldModel, prediction_of
from ..worldmodel.lookahead import imagined_layer
from ..worldmodel.naming import in_words
from .base import Imagine, ProbeResult

Keep: TypeAlias = Literal["replies", "prompts", "tokens"]
"""How much of each call a trajectory keeps: the reply's text and its token counts; the prompt as well;
or token ids, texts and log-probabilities (to six decimals) as well, as trainers and the viewer need
them. Each includes the one before."""

IMAGINE = "imagine"
"""The kind of a call that a world model made of its own language model; calls of all other kinds are
the agent's."""

KNOWN = "known"
"""The source of what needed no world model."""

_REPLIES = dict(KINDS.values())
_LOWEST = -1e9  # stands for the logarithm of 0, which JSON has not
_DIGITS = 6  # what a batch of another size changes is far below, and so is not on record


def checked_reply(request: LMRequest, reply: object, model: str) -> LMReply:
    """Return a model's reply; raise where it is an exception, or not what the request asks for.

    Models are plug-ins: a reply of another kind or length would else fail in an agent, far away.
    """
    if isinstance(reply, Exception):
        raise reply
    kind = _REPLIES[type(request)]
    if type(reply) is not kind:
        raise LanguageModelError(
            f"expected {kind.__name__} from {model} in reply to {type(request).__name__}, "
            f"found {reply!r:.80}"
        )
    text: Any = reply.text if isinstance(reply, Completion) else ""
    if not isinstance(text, str):
        raise LanguageModelError(f"expected text (str) from {model}, found {text!r:.80}")

    # Of `Score` and `NextWord`: what is to be scored, and the scores.
    for texts_name, values_name in (("completions", "logprobs"), ("words", "probabilities")):
        texts = getattr(request, texts_name, None)
        if texts is not None and len(texts) != len(getattr(reply, values_name)):
            raise LanguageModelError(f"expected a value for each of the {texts_name} from {model}")
    return reply  # type: ignore[return-value]


def call_of(
    request: LMRequest, reply: LMReply, keep: Keep, lm: LanguageModel | None = None
) -> Call:
    """Return the record of a request and its reply; of scores the text is the best one.

    `lm` is who replied: it is asked for the texts of tokens, where these are kept.
    """
    text = ""
    finish = ""
    completion_tokens = 0
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    texts: tuple[str, ...] | None = None  # of what each log-probability is
    if isinstance(reply, Completion):
        text = reply.text
        finish = reply.finish
        completion_tokens = reply.completion_tokens
        token_ids = reply.token_ids
        logprobs = reply.logprobs
        texts = reply.tokens
        if keep == "tokens" and texts is None and token_ids is not None:
            token_texts = getattr(lm, "token_texts", None)  # of `TokenTexts`, which is slow to ask
            texts = token_texts and token_texts(token_ids)
    elif isinstance(request, Score) and isinstance(reply, Scores):
        completion_tokens = sum(map(len, reply.logprobs))
        logprobs = reply.totals
        texts = tuple(request.completions)
        text = texts[reply.best] if texts else ""
    elif isinstance(request, NextWord) and isinstance(reply, WordProbabilities):
        logprobs = tuple(math.log(p) if p > 0 else _LOWEST for p in reply.probabilities)
        texts = tuple(request.words)
        text = texts[logprobs.index(max(logprobs))] if texts else ""

    keeps_prompts = keep != "replies"
    keeps_tokens = keep == "tokens"
    return Call(
        kind="words" if isinstance(request, NextWord) else type(request).__name__.lower(),
        purpose=request.purpose,
        text=text,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=completion_tokens,
        messages=tuple(request.messages) if keeps_prompts else None,
        prefix=request.prefix if keeps_prompts else "",
        token_ids=token_ids if keeps_tokens else None,
        logprobs=_finite(logprobs) if keeps_tokens else None,
        finish=finish,
        adapter=request.adapter,
        tokens=texts if keeps_tokens else None,
    )


def _finite(logprobs: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """Return log-probabilities that JSON can hold, the same whatever else was in the batch."""
    if logprobs is None:
        return None

    finite = (float(logprob) if logprob >= _LOWEST else _LOWEST for logprob in logprobs)
    return tuple(round(logprob, _DIGITS) + 0.0 for logprob in finite)  # there is no -0.0 then


_Answer: TypeAlias = "tuple[str, Any, bool, bool, dict[str, Any]]"


def is_grounded(model: object) -> bool:
    """Return whether a world model belongs to one episode at a time."""
    if isinstance(model, CachedWorldModel):  # it has a `ground` of its own, which only passes on
        return is_grounded(model.model)
    return isinstance(model, Grounded)


class ImagineRequest(NamedTuple):
    """A question to a world model, from the episode in a slot."""

    model: WorldModel
    query: Query
    slot: EnvSlot
    known: str | None = None
    """the answer, where nobody is to be asked"""


class ProbeRequest(NamedTuple):
    """A question to the real environment of an episode: what does it answer to an action?"""

    slot: EnvSlot
    action: str


class EnvSlot:
    """An environment, and what a runner knows of it.

    After a probe the environment stays where the probed action led, until something else needs it: if
    the episode takes that very action, there is nothing more to do; before all else it is brought back
    to the present. A wrapper with a memory of its own must follow
    `comap.envs.restore` for that, as Gymnasium's do that ``gym.make`` adds.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        world_model: WorldModel | str | Mapping[str, Any] | None = None,
    ):
        inner = getattr(env, "unwrapped", env)
        if not isinstance(inner, TextEnv):
            description = repr(inner)[:80] if isinstance(inner, str) else type(inner).__name__
            raise OptionError(not_ours(description))
        self.env = env
        self.inner = inner
        self.layer = imagined_layer(env)
        self.model = asked_model(env, world_model)
        self.model_was_named = world_model is not None or self.layer is not None
        self.model_was_asked = False  # in this episode
        self.fingerprint = inner.fingerprint()
        self.moment = object()  # another one after each step: grounded models follow it
        self.broken = False

        # Costs, which tests compare: of the probes, `kept` became the episode's own step.
        self.probes = 0
        self.restores = 0
        self.kept = 0
        self.waited = 0.0  # seconds that the episode's requests waited, since its last step

        self._before: Snapshot | None = None  # the present, where a probe has left it
        self._probed: tuple[str, _Answer] | None = None
        self._batched = None
        if self.layer is not None and not is_grounded(self.layer.world_model):
            self._batched = self.layer

    def reset(self, task: str | None, seed: int | None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; raise where the environment starts another task than the one named."""
        self.moment = object()
        self._before = self._probed = None
        self.model_was_asked = False
        with self._noting():
            answer = self.env.reset(seed=seed, options=None if task is None else {"task": task})
        if task is not None and answer[1]["task"] != task:
            raise EngineError(f"expected task {task!r} to start, found {answer[1]['task']!r:.120}")
        return answer

    def step(self, action: str) -> _Answer:
        """Take an action from the present; one that was probed last is not taken again."""
        self.moment = object()
        if self._probed is not None and self._probed[0] == action:
            answer = self._probed[1]
            self._before = self._probed = None
            self.kept += 1
            return answer
        self.rewind()
        with self._noting():
            return self.env.step(action)

    def probe(self, action: str) -> ProbeResult:
        """Return what the real environment answers to an action; the episode stays before it."""
        if self.layer is not None:
            raise OptionError(
                "a probe needs the real environment, found an imagined one; play this agent without "
                "ImaginedEnv"
            )
        if self._probed is None or self._probed[0] != action:
            self._try(action)
        assert self._probed is not None and self._before is not None
        reads = partial(self.inner.canonicalizer.update, self._before.facts, action)
        return ProbeResult.of(self._probed[1], reads, self.inner.refused)

    def rewind(self) -> None:
        """Bring the environment back to the present, if a probe has led away from it."""
        if self._before is None:
            return
        with self._noting():
            restore(self.env, self._before)
        self._before = self._probed = None
        self.restores += 1

    def expert_action(self) -> str | None:
        """Return what the environment's expert would do in the present, as admissible actions word it."""
        self.rewind()
        action: str | None = self.env.get_wrapper_attr("expert_action")()
        admissible = self.env.get_wrapper_attr("admissible_actions") or ()
        if action is None or action in admissible:
            return action

        # What masked decoding cannot say is not to be learned: on the web, names in lower case.
        canonical = self.inner.canonicalizer.action
        same = (listed for listed in admissible if canonical(listed) == canonical(action))
        return next(same, action)

    def question_of_step(self, action: str) -> ImagineRequest | None:
        """Return the question that an imagined step will ask, if others can be asked in its batch."""
        layer = self._batched
        if layer is None or (query := layer.next_query(action)) is None:
            return None
        return ImagineRequest(layer.world_model, query, self)

    def prepare_step(self, action: str, answer: Any) -> None:
        """Hand the answer to `question_of_step` over to the imagined environment."""
        if self._batched is not None:
            self._batched.prepare(action, answer)

    def imagine_request(self, request: Imagine) -> ImagineRequest:
        """Return the question that an agent's request comes to."""
        self.rewind()  # the query is about the present, not about where a probe led
        query = query_about(self.env, request.action, request.after)
        if request.observation is None:
            self.model_was_asked = True
            if not self.model_was_named:
                _warn_of_oracle()
        return ImagineRequest(self.model, query, self, request.observation)

    def _try(self, action: str) -> None:
        """Take an action from the present, and remember the present and the answer."""
        self.rewind()
        with self._noting():
            self._before = snapshot(self.env)
            self.probes += 1
            answer = self.env.step(action)

        # A fault of the engine is data in an episode; here it is no answer, and the agent is told so.
        if "error" in answer[4]:
            raise EngineError(
                f"expected an answer to the probed action {action!r:.80}, found "
                f"{answer[4]['error']}"
            )
        self._probed = (action, answer)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Mark the slot as broken after a fault that is no error of comap: its engine is in any state."""
        try:
            yield
        except Exception as fault:
            self.broken = self.broken or not isinstance(fault, CoMapError)
            raise


@cache
def _warn_of_oracle() -> None:
    """Warn, once in a process, that nobody has named the world model that an agent asks."""
    warnings.warn(
        f"an agent asks a world model, and none was given: {in_words('oracle')}; pass "
        'world_model=..., or world_model="oracle" if that is meant',
        UserWarning,
        stacklevel=2,
    )


class EnvPool:
    """The environments of a run: as many as episodes run at the same time, closed at its end."""

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[str, str]],
        world_model: WorldModel | str | Mapping[str, Any] | None = None,
    ):
        self._make_env = make_env

        # A grounded model knows one episode: of its id or config each slot makes one of its own. Any
        # other is made once, for all environments, so that it is asked in batches.
        self._world_model = world_model
        if isinstance(world_model, str | Mapping):
            model = create_world_model(world_model)
            if not is_grounded(model):
                self._world_model = model
        self._all: list[EnvSlot] = []
        self._free: list[EnvSlot] = []

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self._all:
            _close(slot)

    def acquire(self) -> EnvSlot:
        """Return an environment that nobody plays on."""
        return self._free.pop() if self._free else self._make()

    def release(self, slot: EnvSlot) -> None:
        """Put an environment back for the next episode; close one that broke."""
        if slot.broken:
            self._all.remove(slot)
            _close(slot)
        else:
            self._free.append(slot)

    def _make(self) -> EnvSlot:
        """Return a new slot; raise if it shares with another what only one episode may use."""
        slot = EnvSlot(self._make_env(), self._world_model)
        if any(other.inner is slot.inner for other in self._all):
            raise OptionError("make_env must make a new environment each time, not return one")

        # Imagined environments may share a world model, unless it is one for an episode at a time.
        if slot.layer is not None and is_grounded(slot.layer.world_model):
            model = slot.layer.world_model
            layers = [other.layer for other in self._all]
            if any(layer is not None and layer.world_model is model for layer in layers):
                raise OptionError(
                    f"make_env gives two environments one {type(model).__name__}, which knows one "
                    "episode at a time; make one for each, or pass ImaginedEnv its id or config"
                )
        self._all.append(slot)
        return slot


def _close(slot: EnvSlot) -> None:
    try:
        slot.env.close()
    except Exception as error:  # what was played there is on record: nothing is lost
        warnings.warn(f"an environment could not be closed: {error}", RuntimeWarning, stacklevel=2)


SlotRequest: TypeAlias = "LMRequest | ImagineRequest | ProbeRequest"
"""What an episode waits for: a request to the language model, or a question to a world model or to its
own environment."""

_Ask: TypeAlias = "Callable[[Sequence[Any]], list[Any]]"


class ImagineReply(NamedTuple):
    """A world model's prediction, and the language model's request and completion that it was read from."""

    prediction: Prediction
    request: Generate | None = None
    completion: Completion | None = None
    lm: LanguageModel | None = None


class _LMQuestion(NamedTuple):
    """A request, and the language model that it goes to."""

    lm: LanguageModel | None
    request: LMRequest


class Ticket(NamedTuple):
    """A request that was handed over: the id of the model that has it, and its number there."""

    lm: int
    number: int


class _HandedOver(NamedTuple):
    """A question that a streaming model has, as it was asked and as it was routed."""

    question: SlotRequest
    routed: _LMQuestion


class ModelWork(NamedTuple):
    """How much language models were asked so far, and how much of it they have answered."""

    asked: int = 0
    answered: int = 0
    tokens: int = 0
    """Tokens of the answered calls: read and written."""


OnWork: TypeAlias = "Callable[[ModelWork], object]"
"""Is called before and after each batch of calls, with the sums so far; of several threads perhaps. Of a
`StreamingLanguageModel` before and after each call."""


class RequestBatcher:
    """Answers requests in batches; what fails has its exception in place of an answer."""

    def __init__(self, lm: LanguageModel | None, on_work: OnWork | None = None):
        self._lm = lm
        self._grounded: dict[int, object] = {}
        self._on_work = on_work
        self._work = ModelWork()
        self._counting = threading.Lock()  # where rounds overlap, several threads count
        self._handed_over: dict[Ticket, _HandedOver] = {}
        self._streams: dict[int, StreamingLanguageModel] = {}  # that were handed something, by id

    def __call__(self, questions: Sequence[SlotRequest]) -> list[Any]:
        """Return an answer, or the exception that stands for it, for each question, in order."""
        routed = [self._route(question) for question in questions]
        batches: dict[Hashable, list[int]] = {}
        for index, question in enumerate(routed):
            if not isinstance(question, Exception):
                batches.setdefault(_batch_of(question), []).append(index)

        def is_probe(indices: Sequence[int]) -> bool:
            return isinstance(routed[indices[0]], ProbeRequest)

        # Probes come last: a grounded model asked after one would have the environment brought back
        # to the present, and the probed action, if it is then decided on, would be taken once more.
        answers: list[Any] = list(routed)
        for indices in sorted(batches.values(), key=is_probe):
            replies = self._answer([routed[index] for index in indices])
            for index, reply in zip(indices, replies, strict=True):
                answers[index] = _read(questions[index], routed[index], reply)
        return answers

    @property
    def is_streamed(self) -> bool:
        """Whether the agent's own language model answers requests one by one."""
        return isinstance(self._lm, StreamingLanguageModel)

    def submit(self, question: SlotRequest) -> Ticket | None:
        """Hand a question over to a language model that answers one by one; None if nobody does."""
        routed = self._route(question)
        if not isinstance(routed, _LMQuestion):
            return None
        lm: Any = routed.lm
        if not isinstance(lm, StreamingLanguageModel):
            return None
        try:
            ticket = Ticket(id(lm), lm.submit(routed.request))
        except Exception:
            return None  # asked by itself, it gets its exception
        self._streams[ticket.lm] = lm
        self._handed_over[ticket] = _HandedOver(question, routed)
        self._count(ModelWork(asked=1))
        return ticket

    def step(self) -> list[tuple[Ticket, Any]]:
        """Return answers to questions that were handed over, once there is one."""
        waited_for = {ticket.lm for ticket in self._handed_over}
        for lm_id in list(self._streams):
            # The models take turns: while one is asked, another in this process gets no further.
            self._streams[lm_id] = self._streams.pop(lm_id)
            if lm_id in waited_for:
                return self._step(lm_id)
        return []

    def _step(self, lm_id: int) -> list[tuple[Ticket, Any]]:
        """Return what a model has answered; where it answers nothing, an exception for each question."""
        replies: dict[int, Any] = {}
        try:
            replies = dict(self._streams[lm_id].step())
            if not replies:
                raise LanguageModelError("expected replies of the language model, found none")
        except Exception as error:
            replies = {ticket.number: error for ticket in self._handed_over if ticket.lm == lm_id}

        answered: list[tuple[Ticket, Any]] = []
        for number, reply in replies.items():
            ticket = Ticket(lm_id, number)
            handed_over = self._handed_over.pop(ticket, None)
            if handed_over is not None:  # else somebody else asked the same model
                answered.append((ticket, _read(*handed_over, reply)))
                self._count(ModelWork(answered=1, tokens=_tokens_of(reply)))
        return answered

    def forget(self) -> None:
        """Take questions back that were handed over and have no answer yet: nobody wants one any more."""
        for lm_id, lm in self._streams.items():
            numbers = [ticket.number for ticket in self._handed_over if ticket.lm == lm_id]
            if numbers:
                lm.forget(numbers)
        self._handed_over = {}

    def answerer_of(self, question: SlotRequest) -> Hashable:
        """Return a key for who answers a question; None for what only one thread may answer."""
        if isinstance(question, ProbeRequest):
            return None
        if not isinstance(question, ImagineRequest):
            return id(self._lm)
        model: Any = question.model
        if is_grounded(model):
            return None

        # A world model may be made of the policy's own language model: these two cannot overlap.
        while isinstance(model, CachedWorldModel):
            model = model.model
        return id(model.lm) if isinstance(model, LanguageWorldModel) else id(model)

    def _route(
        self, question: SlotRequest
    ) -> _LMQuestion | ImagineRequest | ProbeRequest | Exception:
        """Return a question to a language model with that model, and any other as it is.

        A language world model is not asked itself: its request goes to its language model in one batch
        with the agent's own, where both are the same model. Where it cannot make the request, its
        exception is returned.
        """
        if isinstance(question, ProbeRequest):
            return question
        if not isinstance(question, ImagineRequest):
            return _LMQuestion(self._lm, question)

        # The type exactly: a subclass may predict in a way of its own.
        model = question.model
        if question.known is not None or type(model) is not LanguageWorldModel:
            return question
        try:
            return _LMQuestion(model.lm, model.request(question.query, "world model"))
        except Exception as error:
            return error

    def _answer(self, batch: Sequence[Any]) -> list[Any]:
        """Return an answer or an exception for each question of a batch, which are all of one kind."""
        first = batch[0]
        if isinstance(first, ImagineRequest):
            if first.known is not None:
                return [Prediction(str(question.known), source=KNOWN) for question in batch]
            return _each(self._imagine, batch)
        if isinstance(first, ProbeRequest):
            return _each(lambda probes: [probe.slot.probe(probe.action) for probe in probes], batch)

        lm = first.lm
        requests = [question.request for question in batch]
        if lm is None:
            return [_without_model(request) for request in requests]
        self._count(ModelWork(asked=len(requests)))
        replies = _each(lambda part: answer(lm, part), requests)
        self._count(ModelWork(answered=len(replies), tokens=sum(map(_tokens_of, replies))))
        return replies

    def _count(self, added: ModelWork) -> None:
        with self._counting:
            before = self._work
            self._work = ModelWork(
                asked=before.asked + added.asked,
                answered=before.answered + added.answered,
                tokens=before.tokens + added.tokens,
            )
            if self._on_work is not None:
                self._on_work(self._work)

    def _imagine(self, batch: Sequence[ImagineRequest]) -> list[Any]:
        """Ask a world model; one that is grounded learns first where the episode is now."""
        model = batch[0].model
        slot = batch[0].slot
        if is_grounded(model) and self._grounded.get(id(model)) is not slot.moment:
            # Forgotten first: if grounding fails, the next question tries it again.
            self._grounded.pop(id(model), None)
            slot.rewind()
            imagines_the_episode = slot.layer is not None and model is slot.layer.world_model
            if isinstance(model, Grounded) and not imagines_the_episode:
                model.ground(slot.env)  # an imagined environment does so itself
            self._grounded[id(model)] = slot.moment
        return list(ask(model, [question.query for question in batch]))


def _without_model(request: LMRequest) -> OptionError:
    return OptionError(
        f"expected a language model to answer {type(request).__name__}, found none; pass lm=... (on "
        "the command line: --model)"
    )


def _tokens_of(reply: Any) -> int:
    """Return the tokens that a reply took, of its prompt and its own; none where it failed."""
    return int(getattr(reply, "prompt_tokens", 0)) + int(getattr(reply, "completion_tokens", 0))


def _batch_of(question: _LMQuestion | ImagineRequest | ProbeRequest) -> Hashable:
    """Return a key that questions have in common which can be asked together."""
    if isinstance(question, _LMQuestion):
        return id(question.lm), type(question.request)
    if isinstance(question, ProbeRequest):
        return id(question)
    if question.known is not None:
        return KNOWN
    return id(question.model), id(question.slot) if is_grounded(question.model) else None


def _read(question: SlotRequest, routed: Any, reply: Any) -> Any:
    """Return the answer that a reply is; an exception stays one."""
    if not isinstance(question, ImagineRequest) or isinstance(reply, Exception):
        return reply
    model = question.model
    if not (isinstance(routed, _LMQuestion) and isinstance(model, LanguageWorldModel)):
        return ImagineReply(reply)

    request: Any = routed.request
    try:
        completion: Any = checked_reply(request, reply, model.lm.name)
        prediction = prediction_of(completion, model.source, model.ending)
    except Exception as error:
        return error
    return ImagineReply(prediction, request, completion, model.lm)


def _each(ask_all: _Ask, batch: Sequence[Any]) -> list[Any]:
    """Return the answers to a batch; where it fails, halve it until only the guilty ones fail.

    One prompt that a server refuses is to end one episode, not those of its whole batch.
    """
    try:
        return ask_all(batch)
    except Exception as error:
        if len(batch) == 1:
            return [error]
    half = len(batch) // 2
    return _each(ask_all, batch[:half]) + _each(ask_all, batch[half:])
