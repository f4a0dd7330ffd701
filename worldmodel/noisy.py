"""A world model that errs at a chosen rate: to test what depends on world models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium

from ..envs import Canonicalizer, Describer, TextEnv
from ..errors import OptionError, WorldModelError, suggest
from ..facts import Fact, State, diff
from .base import Configured, Grounded, Prediction, Query, WorldModel, ask, checked
from .naming import name_of
from .oracle import OracleWorldModel

ERROR_KINDS = ("drop", "swap", "invent")
"""The kinds of errors that `NoisyWorldModel` can make."""


class NoisyWorldModel:
    """Spoils the predictions of another model, an oracle by default, fact by fact.

    Each fact that an action changes is spoilt with probability `error_rate`, in a way drawn from
    `kinds`: *dropped* (not predicted to change), *swapped* (an object or place in it replaced by
    another known one) or *invented* (another such fact is predicted as well). Where nothing changes,
    one change is invented with the same probability, if `kinds` has that. The spoilt facts are put
    into words by the environment's canonicalizer (`Describer`), whose words may not say all of them
    where no action could have made them. The errors depend on the seed and the query alone, and
    those of a lower rate are among those of a higher one. What the model behind knows beyond the text
    (`Prediction.info`) is not passed on, as it is not true in a belief with errors.

    Args:
        error_rate: 0 to 1.
        kinds: Which of `ERROR_KINDS`.
        seed: Seed of the errors.
        model: The model to spoil.

    Raises:
        OptionError: The rate or a kind is none.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.worldmodel import ImaginedEnv
        >>> env = ImaginedEnv(gym.make("comap/ALFWorld-v0"), NoisyWorldModel(error_rate=1.0))
        >>> observation, info = env.reset(seed=0)
        >>> action = [a for a in info["admissible_actions"] if a.startswith("go to")][0]
        >>> env.step(action)[4]["imagined"]
        True
    """

    def __init__(
        self,
        error_rate: float = 0.1,
        kinds: Sequence[str] = ERROR_KINDS,
        seed: int = 0,
        model: WorldModel | None = None,
    ):
        if not 0 <= error_rate <= 1:
            raise OptionError(f"error_rate must be from 0 to 1, not {error_rate!r}")
        if isinstance(kinds, str):  # from a command line: one kind, not a sequence of letters
            kinds = [kinds]
        unknown = [kind for kind in kinds if kind not in ERROR_KINDS]
        if unknown or not kinds:
            hint = f"known: {ERROR_KINDS}"
            if unknown:
                hint = suggest(str(unknown[0]), ERROR_KINDS)
            raise OptionError(f"kinds must name kinds of errors, found {list(kinds)}; {hint}")

        self.error_rate = error_rate
        self.kinds = tuple(kinds)
        self.seed = seed
        self.model: WorldModel = OracleWorldModel() if model is None else checked(model)
        self._canonicalizer: Canonicalizer | None = None

    @property
    def name(self) -> str:
        """What records call it: with its error rate, and the model behind unless that is the oracle."""
        name = f"noisy {self.error_rate:g}"
        if isinstance(self.model, OracleWorldModel):
            return name
        return f"{name} of {name_of(self.model)}"

    def ground(self, env: gymnasium.Env[str, str]) -> None:
        """Take note of the environment's canonicalizer, and pass it to the model behind."""
        if isinstance(env.unwrapped, TextEnv):
            self._canonicalizer = env.unwrapped.canonicalizer
        if isinstance(self.model, Grounded):
            self.model.ground(env)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return the spoilt predictions.

        Raises:
            WorldModelError: The environment is not known, or has no `Describer`.
        """
        truths = ask(self.model, queries)
        if self.error_rate == 0:
            return truths
        return [self._spoil(query, truth) for query, truth in zip(queries, truths, strict=True)]

    def config(self) -> dict[str, Any] | None:
        """Return what makes an equal model."""
        base = self.model.config() if isinstance(self.model, Configured) else None
        if base is None:
            return None
        return {
            "id": "noisy",
            "error_rate": self.error_rate,
            "kinds": list(self.kinds),
            "seed": self.seed,
            "model": base,
        }

    def _spoil(self, query: Query, truth: Prediction) -> Prediction:
        """Return a prediction with errors; the same one where no fact was spoilt."""
        canonicalizer = self._canonicalizer
        if canonicalizer is None or not isinstance(canonicalizer, Describer):
            raise WorldModelError(
                "the noisy model needs an environment whose canonicalizer can describe facts "
                "(comap.envs.Describer); use it through ImaginedEnv on such an environment"
            )

        before = query.state
        after = canonicalizer.update(before, query.action, truth.observation)

        # The seed is the query itself: the same question errs the same way, whatever was asked before.
        turns = "\n".join(f"{turn.action}\t{turn.observation}" for turn in query.history)
        key = f"{self.seed}\n{query.goal}\n{turns}\n{query.action}"
        rng = random.Random(key.encode("utf-8", "surrogatepass"))
        spoilt = self._errors(before, after, rng)

        if spoilt == after.facts:
            return replace(truth, source="noisy", reward=None, info=None)
        text = canonicalizer.describe(before, query.action, State(spoilt))
        return Prediction(text, truth.confidence, source="noisy")

    def _errors(self, before: State, after: State, rng: random.Random) -> frozenset[Fact]:
        """Return the facts after the action, with errors.

        All is drawn for each fact, whether it is spoilt or not: so the draws of one fact do not
        move those of the next, and the errors of a lower rate are among those of a higher one.
        """
        facts = set(after.facts)
        known_facts = sorted(before.facts | after.facts)

        delta = diff(before, after)
        changes = [(fact, True) for fact in sorted(delta.added)]
        changes += [(fact, False) for fact in sorted(delta.removed)]

        # An action that does nothing has no fact to spoil, so an error can only be an invention.
        if not changes:
            luck = rng.random()
            invented = None
            if known_facts:
                invented = _swapped(rng.choice(known_facts), known_facts, rng)
            if luck < self.error_rate and invented is not None and "invent" in self.kinds:
                facts.add(invented)

        for fact, is_added in changes:
            luck = rng.random()
            kind = rng.choice(self.kinds)
            swapped = _swapped(fact, known_facts, rng)
            if luck >= self.error_rate:
                continue

            if kind != "invent":  # the change is not predicted
                _set(facts, fact, not is_added)
            if kind != "drop" and swapped is not None:  # another one is
                _set(facts, swapped, is_added)

        return frozenset(facts)


def _set(facts: set[Fact], fact: Fact, holds: bool) -> None:
    """Make a fact hold, or not."""
    if holds:
        facts.add(fact)
    else:
        facts.discard(fact)


def _swapped(fact: Fact, known_facts: Sequence[Fact], rng: random.Random) -> Fact | None:
    """Return the fact with one argument replaced by another name; None where there is no other.

    The other name stands in the same position of a fact with the same predicate, or exists.
    """
    if len(fact) < 2:
        return None
    index = rng.randrange(1, len(fact))

    names: set[str] = set()
    for known_fact in known_facts:
        if known_fact[0] == fact[0] and len(known_fact) > index:
            names.add(known_fact[index])
        if known_fact[0] == "exists" and len(known_fact) == 2:
            names.add(known_fact[1])

    # Sorted, as all that is drawn from here: the order of a set differs between processes.
    candidates = sorted(names - {fact[index]})
    if not candidates:
        return None
    return (*fact[:index], rng.choice(candidates), *fact[index + 1 :])
