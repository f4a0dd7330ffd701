"""A language model as a world model (CoMap, section 2 and Figure 11)."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from ..envs import state_text as belief_text
from ..envs.registry import text_env_of
from ..errors import LanguageModelError, OptionError, check_choice, check_number
from ..lm import Completion, Generate, LanguageModel, Message, Sampling
from ..lm.base import context_tokens, thinks, usual_length
from ..lm.prompts import OVERHEAD, check_prompt_folder, cut_text, fill_template, recent_turns
from ..lm.thoughts import without_thoughts
from .base import Prediction, Query

Style = Literal["standard", "brief"]
StateText = Literal["history", "belief"]
Ending = Literal["facts", "words"]

# "Thought: ... Observation:" or "Next state:" before an observation; neither is part of it.
_LABEL = re.compile(
    r"\A\s*(?:thought\s*:.*?^\s*(?=observation))?"
    r"(?:(?:predicted\s+)?next\s+(?:state|observation)|observation)\s*:[ \t]*",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_DONE = re.compile(
    r"^[ \t]*done[ \t]*:[ \t]*(yes|no)\b.*\Z", re.IGNORECASE | re.MULTILINE | re.DOTALL
)
_ASK_DONE = (
    " After the observation add one line, 'Done: yes' if the task is solved then, else 'Done: no'."
)
_RESERVED = 64  # least tokens of a situation: less says nothing of it
_BRIEF = (2048, 192)  # tokens of prompt and answer, and of the answer (CoMap, Table 5)
_ANSWER = 512
_THOUGHT_AND_ANSWER = 1024


class LanguageWorldModel:
    """Asks a language model for the next observation, in batches, one prompt a query.

    The prompt has the goal, the history (or the belief in words), the action and what to answer, as
    one message of the user in the model's own chat template. Where it does not fit, the history is
    cut from its oldest turn; the goal, the action, the instruction and the output marker are not
    (but for a goal that would fill half of it, or an action a quarter). Nothing of what really follows
    is in it. The goal stands alone only where the first observation lacks it. An answer may begin
    with a thought before ``Observation:``, which is left out.

    Args:
        lm: The language model, or what `comap.lm.create_language_model` makes one from.
        prompts: ``standard``, or ``brief`` for small models that were trained on such prompts.
        state_text: ``history`` or ``belief``.
        adapter: Which adapter of the model answers.
        max_length: The most tokens of prompt and answer together; None for the model's context, up to
            32,768 (8,192 where it does not say), with brief prompts 2,048.
        max_new_tokens: The most tokens of the answer; None for 512, or 1,024 where the model thinks first,
            with brief prompts 192 (CoMap, Table 5).
        history_turns: With ``state_text="history"``: the last so many turns; None for all that fit.
        ending: How an imagined episode's end is known: ``facts`` (the goal, checked on the predicted
            belief) or ``words`` (the model is asked to say it).
        temperature: Temperature of answers; 0 is greedy. Each prompt has a seed of its own.
        examples: How many real transitions of the environment a standard prompt shows, with the form of
            an observation: 0 to 2. Models that were not trained on an environment need them; the
            papers' prompts have none.
        prompt_folder: A folder whose files replace prompts (`comap init prompts`); None for comap's own.

    Raises:
        OptionError: An option is none of those allowed.

    Example:
        >>> model = LanguageWorldModel(None, prompts="terse")
        Traceback (most recent call last):
        comap.errors.OptionError: prompts cannot be 'terse'; known: 'standard', 'brief'
    """

    def __init__(  # noqa: PLR0913 a public constructor: each is one choice of a user
        self,
        lm: LanguageModel | str,
        *,
        prompts: Style = "standard",
        state_text: StateText = "history",
        adapter: str | None = None,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        history_turns: int | None = None,
        ending: Ending = "facts",
        temperature: float = 0.0,
        examples: int = 2,
        prompt_folder: str | None = None,
    ):
        for name, value, allowed in (
            ("prompts", prompts, get_args(Style)),
            ("state_text", state_text, get_args(StateText)),
            ("ending", ending, get_args(Ending)),
        ):
            check_choice(name, value, allowed)

        self._spec = lm if isinstance(lm, str) else None
        self.lm = _model_of(lm)
        if max_length is None:
            max_length = _BRIEF[0] if prompts == "brief" else usual_length(context_tokens(self.lm))
        if max_new_tokens is None:
            max_new_tokens = _answer_tokens(self.lm, prompts, max_length)
        if max_length - max_new_tokens < 2 * _RESERVED:
            raise OptionError(
                f"max_length must leave room for a prompt beside the answer: expected at least "
                f"{max_new_tokens + 2 * _RESERVED}, found {max_length}"
            )

        check_number("examples", examples, 0, 2)
        if prompt_folder is not None:
            check_prompt_folder(prompt_folder)

        # What records and configs say of this model: what has an effect with these settings, and of the
        # folder the name alone, since paths are private.
        self.options: dict[str, Any] = {
            "prompts": prompts,
            "state_text": state_text,
            "adapter": adapter,
            "max_length": max_length,
            "max_new_tokens": max_new_tokens,
            "history_turns": history_turns,
            "ending": ending,
        }
        if temperature:
            self.options["temperature"] = temperature
        if prompts == "standard":
            self.options["examples"] = examples
        if prompt_folder is not None:
            self.options["prompt_folder"] = Path(prompt_folder).name

        self.prompts = prompts
        self.state_text = state_text
        self.adapter = adapter
        self.max_length = max_length
        self.history_turns = history_turns
        self.ending = ending
        self.sampling = Sampling(max_new_tokens, temperature=temperature)
        self.examples = examples
        self.prompt_folder = prompt_folder

    @property
    def source(self) -> str:
        """What predictions name as their source."""
        return f"language:{self.lm.name}"

    @property
    def name(self) -> str:
        """What records call it."""
        return self.source

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return one prediction for each query.

        Raises:
            LanguageModelError: The language model failed at one of them.
        """
        requests = [self.request(query, "imagine") for query in queries]

        # A backend returns an error in the place of one answer; here a caller wants all or none.
        predictions = []
        for completion in self.lm.generate(requests):
            if isinstance(completion, LanguageModelError):
                raise completion
            predictions.append(prediction_of(completion, self.source, self.ending))
        return predictions

    def request(self, query: Query, purpose: str) -> Generate:
        """Return the request of a query: the prompt, and how to sample."""
        messages = self.prompt(query)
        sampling = self.sampling

        if sampling.temperature:  # by the prompt: an answer does not depend on its batch
            digest = hashlib.sha256(repr(messages).encode("utf-8", "replace")).digest()
            sampling = replace(sampling, seed=int.from_bytes(digest[:4], "big") >> 1)
        return Generate(messages, sampling, adapter=self.adapter, purpose=purpose)

    def prompt(self, query: Query) -> tuple[Message, ...]:
        """Return what the language model is asked."""
        return self.fill(query, __package__ or "", "predict")

    def fill(self, query: Query, package: str, name: str, **slots: str) -> tuple[Message, ...]:
        """Return a prompt about a query from a template with the slots of this model's own.

        Args:
            query: The question; its state's text is cut so that all of it fits.
            package: The package whose folder ``prompts`` holds the template.
            name: The template's name.
            **slots: What fills its further slots.

        Raises:
            OptionError: There is no such template.
        """
        ending = _ASK_DONE if self.ending == "words" and self.prompts == "standard" else ""
        action = cut_text(query.action, self.max_length // 4, self.lm.count_tokens)
        slots |= {"action": action, "env": query.env_id, "ending": ending}
        slots |= {"examples": self._examples(query)}
        fill = partial(
            fill_template, package, self.prompts, name, prompt_folder=self.prompt_folder, **slots
        )

        # The situation gets what the rest of the prompt and the answer leave.
        bare = fill(situation="")
        bare_tokens = sum(self.lm.count_tokens(message.content) + OVERHEAD for message in bare)
        budget = max(self.max_length - self.sampling.max_new_tokens - bare_tokens, _RESERVED)
        return fill(situation=self._situation(query, budget))

    def _examples(self, query: Query) -> str:
        """Return the prompt's section of examples; empty with brief prompts or no examples."""
        if not self.examples or self.prompts == "brief":
            return ""
        briefing = query.briefing or text_env_of(query.env_id).briefing
        briefing = briefing.replaced(query.env_id, self.prompt_folder)

        parts = [briefing.observation_form] if briefing.observation_form else []
        for transition in briefing.shown_transitions()[: self.examples]:
            parts.append(
                f"State\n{transition.before}\n\nAction\n{transition.action}\n\n"
                f"Next observation\n{transition.after}"
            )

        # At most a third of the prompt, or there is no room for the history.
        most_tokens = self.max_length // 3
        while parts and self.lm.count_tokens("\n\n".join(parts)) > most_tokens:
            parts.pop()
        if not parts:
            return ""
        examples = "\n\n".join(parts)
        return f"## Examples\n{examples}\n\n"

    def config(self) -> dict[str, Any] | None:
        """Return what makes an equal model, where the language model was given by name."""
        if self._spec is None:  # a live model has no text from which it could be made again
            return None
        return {"id": "language", "lm": self._spec, **self.options}

    def _situation(self, query: Query, budget: int) -> str:
        """Return the state as text, in at most so many tokens."""
        count = self.lm.count_tokens
        if self.state_text == "belief":
            text = belief_text(query.env_id, query.goal, query.history, query.state, query.action)
            return cut_text(text, budget, count)

        # The oldest turns go first, and never the goal or the first observation. The authors' code cuts
        # the whole prompt on the right instead, and so the action and the output marker.
        turns = list(query.history[1:])
        if self.history_turns is not None:
            turns = turns[max(len(turns) - self.history_turns, 0) :]
        first = query.history[0].observation if query.history else ""
        shares = 2 if turns else 1  # the first observation leaves half of the room to turns

        # The goal stands at the end of the first observation: where that is cut, it is written before.
        goal = ""
        room = budget
        if query.goal not in first or count(first) > budget // shares:
            goal = f"Task goal: {cut_text(query.goal, budget // 2, count)}\n"
            room -= count(goal)

        head = goal + cut_text(first, max(room // shares, 1), count)
        lines = [head]
        if turns:
            for turn in recent_turns(turns, budget - count(head), count):
                lines += [f"> {turn.action}", turn.observation]
        return "\n".join(lines)


def prediction_of(completion: Completion, source: str, ending: Ending = "facts") -> Prediction:
    """Return the prediction that a reply states, without its thought, label and "Done:" line.

    The confidence is the geometric mean of the tokens' probabilities.
    """
    text = _LABEL.sub("", without_thoughts(completion.text)).strip()

    terminated: bool | None = None
    reward: float | None = None
    if ending == "words":
        done_line = _DONE.search(text)
        if done_line is not None:
            terminated = done_line[1].lower() == "yes"
            reward = float(terminated)
            text = text[: done_line.start()].strip()

    # Some backends return no log-probabilities, and rounding may leave one a hair above 0.
    confidence = None
    logprobs = [min(value, 0.0) for value in completion.logprobs or ()]
    if logprobs and not any(math.isnan(value) for value in logprobs):
        confidence = round(math.exp(math.fsum(logprobs) / len(logprobs)), 6)

    return Prediction(text, confidence, reward, terminated, source)


def _answer_tokens(lm: LanguageModel, prompts: Style, max_length: int) -> int:
    """Return the default of `max_new_tokens`."""
    if prompts == "brief":
        return _BRIEF[1]
    tokens = _THOUGHT_AND_ANSWER if thinks(lm, False) else _ANSWER
    return min(tokens, max_length // 4)


def _model_of(lm: LanguageModel | str) -> LanguageModel:
    """Return a language model, made here where it is given by name."""
    if not isinstance(lm, str):
        return lm

    # Imported here: whoever brings a model of their own pays for no backend.
    from ..lm.create import create_language_model

    return create_language_model(lm)
