"""One recorded episode, held against the environment: the same actions must have the same answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from ..envs import TextEnv
from ..errors import DataNotFound, EngineError, MissingExtra, TaskNotFound
from ..facts import Delta, State, diff
from ..trajectory import TOLD, Step, Trajectory

__all__ = ["Difference", "Verdict", "check_episode"]

_LONGEST = 2_000  # characters of a value that are told


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a record is not what the environment says.

    Attributes:
        step: The number of the step; 0 is the episode's beginning.
        field: What differs there.
        expected: What the environment says.
        found: What the record says.
    """

    step: int
    field: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of checking an episode.

    Attributes:
        status: ``"agrees"``, ``"differs"`` or ``"not checked"``.
        steps: How many steps were held against the environment.
        imagined: How many of them nobody but a world model ever answered: there the recorded facts
            were held against what the recorded text means.
        recalled: At how many the answers of sources outside were taken from the record.
        difference: The first difference, if there is one.
        reason: Why it, or the rest of it, was not checked.
    """

    status: str
    steps: int = 0
    imagined: int = 0
    recalled: int = 0
    difference: Difference | None = None
    reason: str = ""


def check_episode(
    env: gymnasium.Env[str, str], trajectory: Trajectory, horizon: int | None = None
) -> Verdict:
    """Take the actions of a recorded episode again, and compare everything that follows.

    Real steps are compared to the byte: text, reward, score, belief, change, the end. Of an imagined
    step the belief is made again from the recorded text, and of a prediction likewise.

    Args:
        env: The real environment, made as it was then.
        trajectory: The record; whatever is in it does no harm.
        horizon: Of imagined episodes: the step that ends them, where that is known.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent, run_episode
        >>> env = gym.make("comap/ALFWorld-v0", source="generated")
        >>> check_episode(env, run_episode(env, ExpertAgent(), seed=0)).status
        'agrees'
    """
    try:
        problem = _malformed(trajectory)
        if problem is not None:
            return Verdict("differs", difference=problem)
        if trajectory.error is not None and not trajectory.goal and not trajectory.steps:
            return Verdict("not checked", reason=f"it failed at its start: {trajectory.error}")
        return _Replay(env, trajectory, horizon).verdict()
    except (DataNotFound, MissingExtra) as error:
        return Verdict("not checked", reason=str(error))
    except EngineError as error:
        return Verdict("not checked", reason=f"the engine does not start: {error}")
    except TaskNotFound as error:
        found = Difference(0, "task", "one that is there", f"{trajectory.task!r:.200}: {error}")
        return Verdict("differs", difference=found)


def _malformed(trajectory: Trajectory) -> Difference | None:
    """Return what is of the wrong type, so that nothing strange reaches the environment."""
    told: list[tuple[int, str, str, object, type | tuple[type, ...]]] = [
        (0, name, "text", getattr(trajectory, name), str)
        for name in ("env_id", "task", "split", "goal", "observation")
    ]
    told.append((0, "seed", "a number or nothing", trajectory.seed, (int, type(None))))
    told.append((0, "error", "text or nothing", trajectory.error, (str, type(None))))
    for number, step in enumerate(trajectory.steps, 1):
        told.append((number, "action", "text", step.action, str))
        told.append((number, "observation", "text", step.observation, str))
        told.append((number, "notes", "names with values", step.notes, Mapping))
    for number, name, wanted, value, kinds in told:
        if not isinstance(value, kinds):
            return Difference(number, name, wanted, _shown(value))
    return None


class _Differs(Exception):
    def __init__(self, *told: Any):
        self.difference = Difference(*told)


class _Replay:
    """A replay on its way."""

    def __init__(self, env: gymnasium.Env[str, str], trajectory: Trajectory, horizon: int | None):
        inner = env.unwrapped
        assert isinstance(inner, TextEnv)
        self.env, self.inner, self.record, self.horizon = env, inner, trajectory, horizon
        self.before = State()
        self.pending: list[str] = []
        self.recalled: frozenset[int] = frozenset()
        self.tells = any(step.told for step in trajectory.steps)  # old records do not
        self.over = self.checked = self.imagined = 0

    def verdict(self) -> Verdict:
        """Replay, and return what came of it."""
        difference, reason = None, ""
        self.recalled = self.inner.recall(self.record.steps)
        try:
            self._begin()
            for number, step in enumerate(self.record.steps, 1):
                reason = self._step(number, step)
                if reason:
                    break
                self.checked += 1
                self.imagined += step.imagined is True
        except _Differs as found:
            difference = found.difference
        finally:
            self.inner.recall(())
        status = "differs" if difference else "not checked" if reason else "agrees"
        recalled = sum(t <= self.checked for t in self.recalled)
        return Verdict(status, self.checked, self.imagined, recalled, difference, reason)

    def _begin(self) -> None:
        task, seed = {"task": self.record.task}, self.record.seed
        observation, info = self.env.reset(seed=seed, options=task)
        for name, real in (
            ("split", info["split"]),
            ("goal", info["goal"]),
            ("observation", observation),
        ):
            _same(0, name, real, getattr(self.record, name))
        _same_state(0, "facts", info["facts"], self.record.facts)
        self.before = self.record.facts

    def _step(self, number: int, step: Step) -> str:
        """Check a step; return why it cannot be checked, if that is so."""
        _same(number, "step", number, step.t)
        if self.over:
            raise _Differs(number, "step", f"none: the episode ended at {self.over}", step.action)
        last = number == len(self.record.steps)
        fault = self.record.error is not None and last and step.observation == ""
        if step.imagined:
            self._check_imagined(number, step, fault and step.truncated is True)
        else:
            reason = self._check_real(number, step, fault)
            if reason:
                return reason
        if step.prediction is not None:
            self._check_prediction(number, step)
        self.before = step.facts
        return ""

    def _check_real(self, number: int, step: Step, fault: bool) -> str:
        for pending in self.pending:
            self.env.step(pending)
            if not self.inner.snapshot().running:
                break
        self.pending = []
        answer = self.env.step(step.action)
        real = Step.of(step.action, answer)
        if fault and "error" not in answer[4]:
            return f"its last step failed then, and does not now: {self.record.error}"
        cut = self.horizon is not None and self.record.imagined and number >= self.horizon
        told = {name: getattr(real, name) for name in _FIELDS}
        told["truncated"] = real.truncated or (cut and not real.terminated)
        for name, value in told.items():
            _same(number, name, value, getattr(step, name))
        _same_state(number, "facts", real.facts, step.facts)
        _same_delta(number, diff(self.before, real.facts), step.delta)
        if number not in self.recalled and self.tells:
            _same(number, TOLD, _kept(self.inner, answer[4]), dict(step.told))
        self.over = number if real.terminated or told["truncated"] else 0
        return ""

    def _check_imagined(self, number: int, step: Step, fault: bool) -> None:
        self.pending.append(step.action)
        facts = self.before
        if not fault:
            facts = self.inner.canonicalizer.update(facts, step.action, step.observation)
            if self.horizon is not None:
                cut = number >= self.horizon and not step.terminated
                _same(number, "truncated", cut, step.truncated)
        _same_state(number, "facts", facts, step.facts)
        _same_delta(number, diff(self.before, facts), step.delta)
        self.over = number if step.terminated or step.truncated else 0

    def _check_prediction(self, number: int, step: Step) -> None:
        """Read the predicted text again; agents may have asked about their draft."""
        said = step.prediction
        assert said is not None
        if not isinstance(said.observation, str):
            raise _Differs(number, "prediction", "text", _shown(said.observation))
        drafts = (step.notes.get(name) for name in ("draft_action", "draft"))
        actions = [step.action, *(draft for draft in drafts if isinstance(draft, str))]
        read = [
            self.inner.canonicalizer.update(self.before, action, said.observation)
            for action in actions
        ]
        if said.facts not in read:
            _same_state(number, "prediction", read[0], said.facts)
        _same_delta(number, diff(self.before, said.facts), said.delta, "prediction's change")


_FIELDS = (
    "observation",
    "reward",
    "score",
    "success",
    "terminated",
    "truncated",
    "invalid_action",
    "imagined",
)


def _kept(env: TextEnv, info: Mapping[str, Any]) -> Any:
    """Return what records keep of an info beside its common part, as JSON reads it back."""
    told = {
        name: info[name]
        for name in env.info_kept
        if name in info and info[name] != env.info_extras[name]
    }
    return json.loads(json.dumps(told, default=str))


def _same(step: int, field: str, expected: object, found: object) -> None:
    """Raise, unless both are written as the same JSON text."""
    try:
        same = json.dumps(expected, sort_keys=True) == json.dumps(found, sort_keys=True)
    except (TypeError, ValueError):
        same = expected == found
    if not same:
        raise _Differs(step, field, *_apart(expected, found))


def _apart(expected: object, found: object) -> tuple[str, str]:
    """Return two values in words; of long texts the part where they begin to differ."""
    if not (isinstance(expected, str) and isinstance(found, str)):
        return _shown(expected), _shown(found)
    pairs = enumerate(zip(expected, found, strict=False))
    at = next((n for n, (one, other) in pairs if one != other), min(len(expected), len(found)))
    start = max(at - 60, 0) if max(len(expected), len(found)) > 200 else 0
    dots = "..." if start else ""
    return dots + repr(expected[start : start + 200]), dots + repr(found[start : start + 200])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _same_state(step: int, field: str, expected: State, found: State) -> None:
    if expected.parsed != found.parsed:
        _same(step, f"{field} (whether the text was understood)", expected.parsed, found.parsed)
    if expected.facts != found.facts:
        raise _Differs(step, field, *_facts_apart(expected.facts, found.facts))


def _same_delta(step: int, expected: Delta, found: Delta, field: str = "change") -> None:
    for part in ("added", "removed"):
        facts = getattr(expected, part), getattr(found, part)
        if facts[0] != facts[1]:
            raise _Differs(step, f"{field}: {part}", *_facts_apart(*facts))


def _facts_apart(expected: frozenset[Any], found: frozenset[Any]) -> tuple[str, str]:
    """Return the first facts that only one of two sets has."""
    return tuple(_some(one - other) for one, other in ((expected, found), (found, expected)))  # type: ignore[return-value]


def _some(facts: frozenset[Any]) -> str:
    def told() -> Iterator[str]:
        for fact in sorted(facts, key=repr)[:3]:
            yield " ".join(map(str, fact))

    more = f" and {len(facts) - 3} more" if len(facts) > 3 else ""
    return "; ".join(told()) + more if facts else "no such fact"
