"""From conversations to tokens and back, for models with a chat template."""

from __future__ import annotations

import datetime
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ..errors import LanguageModelError, OptionError
from .base import (
    BaseLanguageModel,
    Completion,
    Generate,
    LMReply,
    LMRequest,
    Message,
    Scores,
    checked_messages,
    valid_text,
)
from .thoughts import ENDS, OPENS

# They stand for texts, to see what a template puts around them: words that no template contains.
_REPLY = "Xyzzy7"
_TEXT = "Plugh5"
_LONGEST = 5  # tokens in a character that is cut up, and the one before them

TODAY = datetime.datetime(2024, 7, 26)
"""What templates that write today's date are told: Llama 3.2's own date where there is no clock. With the
real one, a run that is gone on with tomorrow would have other prompts."""
DATE_STRING = "26 Jul 2024"
THINKING = "enable_thinking"
# What templates call the date and the clock: Llama 3.1 and 3.2 read both.
_DATE = "date_string"
_CLOCK = "strftime_now"
_UNUSED_BLOCK = f"\n{ENDS}\n\n"  # closes a thought that the template has begun


def _stopped_clock() -> str:
    """Return a macro that stands for ``strftime_now``: libraries pass no function to a template."""
    directives = [f"%{letter}" for letter in "aAbBdHIjmMpSyY"] + ["%-d", "%-m", "%-I"]
    values = [TODAY.strftime(directive.replace("-", "")) for directive in directives]

    # Not every C library knows a directive with "-" (no leading zero): the zeros are cut off here.
    values[-3:] = [value.lstrip("0") for value in values[-3:]]
    pairs = zip(directives, values, strict=True)
    filters = "".join(f"|replace({name!r}, {value!r})" for name, value in pairs)
    # What follows a block loses its first line break, what follows an expression does not.
    return f"{{% macro {_CLOCK}(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}{{{{ '' }}}}"


def checked_template_kwargs(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return variables for a chat template, as a copy, or raise what is wrong with them."""
    expected = "chat_template_kwargs must be a mapping of JSON data by name"
    example = "such as {'enable_thinking': True}"
    if variables is None:
        return {}

    # By way of JSON, as the manifest of a run stores them: a resumed run has the very same.
    try:
        copy = json.loads(json.dumps(dict(variables), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise OptionError(f"{expected}, {example}, not {variables!r:.80}") from None

    wrong_names = [name for name in copy if not name.isidentifier()]
    if wrong_names:
        raise OptionError(f"{expected}, {example}, found the name {wrong_names[0]!r:.80}")
    return dict(copy)


class Following(NamedTuple):
    """The tokens that follow a reply; all empty where no text follows."""

    header: tuple[int, ...] = ()
    observation: tuple[int, ...] = ()
    footer: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Turns:
    """What a chat template puts around the user's message after a reply, in tokens.

    Attributes:
        after_end: What precedes the message, where the reply ended itself by a token.
        with_end: The same, where it was cut at the limit of tokens: with the missing end.
        footer: What ends the message.
        opening: What begins the next reply.
        trims: Whether the template takes the blanks around a text away.
        ends: The tokens that end a reply.
    """

    after_end: tuple[int, ...]
    with_end: tuple[int, ...]
    footer: tuple[int, ...]
    opening: tuple[int, ...]
    trims: bool
    ends: frozenset[int]

    @classmethod
    def of(
        cls,
        render: Callable[[Sequence[Message], bool], str],
        tokenize: Callable[[list[str]], list[list[int]]],
        end: int,
        ends: Collection[int],
    ) -> Turns:
        """Return what a template puts there, seen in conversations of two probes."""
        header, footer = _around(render, _TEXT, False)
        _, footer_and_opening = _around(render, _TEXT, True)
        if not footer_and_opening.startswith(footer):
            raise _hidden(footer_and_opening)
        opening = footer_and_opening[len(footer) :]
        header_ids, footer_ids, opening_ids = tokenize([header, footer, opening])

        # The reply's own end is a token that the model samples: what follows begins behind it.
        end_positions = (position for position, token in enumerate(header_ids, 1) if token in ends)
        after_end = next(end_positions, 0)
        has_end = after_end > 0

        return cls(
            after_end=tuple(header_ids[after_end:]),
            with_end=tuple(header_ids if has_end else [end, *header_ids]),
            footer=tuple(footer_ids),
            opening=tuple(opening_ids),
            trims=_around(render, f"\t{_TEXT}\t", False) == (header, footer),
            ends=frozenset(ends),
        )

    def as_rendered(self, text: str) -> str:
        """Return the user's text as the template writes it."""
        return text.strip() if self.trims else text

    def following(self, response: Sequence[int], user_text: Sequence[int]) -> Following:
        """Return the tokens between a reply and what ends the user's message after it."""
        has_end = bool(response) and response[-1] in self.ends
        header = self.after_end if has_end else self.with_end
        return Following(header, tuple(user_text), self.footer)

    def after(self, response: Sequence[int], user_text: Sequence[int]) -> list[int]:
        """Return the tokens that a reply and the message after it add to a prompt, up to the next reply."""
        header, observation, footer = self.following(response, user_text)
        return [*response, *header, *observation, *footer, *self.opening]


def conversation(
    messages: Sequence[Message], reply_ids: Sequence[Sequence[int]]
) -> tuple[tuple[Message, ...], list[tuple[str, str, Sequence[int]]]]:
    """Return the messages before the first reply, and each reply, what follows it, and its tokens."""
    message_roles = [message.role for message in messages]
    first_reply = len(messages)
    if "assistant" in message_roles:
        first_reply = message_roles.index("assistant")

    # Each reply has its tokens, and one message follows it: the last is what the model answers now.
    roles = message_roles[first_reply:]
    if roles != ["assistant", "user"] * len(reply_ids):
        raise LanguageModelError(
            f"expected {len(reply_ids)} replies whose tokens are given, each followed by a "
            f"message of the user, found {', '.join(roles) or 'no reply'}"
        )

    texts = [message.content for message in messages[first_reply:]]
    turns = list(zip(texts[::2], texts[1::2], reply_ids, strict=True))
    return tuple(messages[:first_reply]), turns


def _around(
    render: Callable[[Sequence[Message], bool], str], text: str, reply_begins: bool
) -> tuple[str, str]:
    """Return what the template puts between a reply and the probe in a text, and behind it."""
    talk = [Message("user", "Hello"), Message("assistant", _REPLY), Message("user", text)]
    rendered = render(talk, reply_begins)
    _, reply, after_reply = rendered.rpartition(_REPLY)
    header, user_text, footer = after_reply.partition(_TEXT)
    if not (reply and user_text):
        raise _hidden(rendered)
    return header, footer


def _hidden(rendered: str) -> LanguageModelError:
    return LanguageModelError(
        "expected a chat template that shows what assistant and user say, in this order, "
        f"found {rendered!r:.200}; use a model with another template"
    )


def control_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the tokens by which a template structures a conversation, by their texts."""
    ids_by_text = {}

    # Added tokens that are not marked special may structure it too (Qwen's <tool_call>), where they
    # have a sign in them: added words are words. Marks of thoughts are what a model may well write.
    for number, token in tokenizer.added_tokens_decoder.items():
        text = str(token)
        signs = any(not (letter.isalnum() or letter.isspace()) for letter in text)
        if text and (token.special or (signs and text not in (OPENS, ENDS))):
            ids_by_text[text] = number

    for number in tokenizer.all_special_ids:
        ids_by_text[str(tokenizer.convert_ids_to_tokens(number))] = number
    return ids_by_text


class ChatTokenizer:
    """Makes prompts of requests, tokens of texts, and texts of tokens.

    Args:
        tokenizer: One of the transformers library, with a chat template.
        ends: Further tokens that end a message.
        template: Variables for the chat template, such as ``{"enable_thinking": True}``. Those that are
            not given have fixed values: a request says whether to think (no, if it does not), and
            today's date is `TODAY`.
    """

    def __init__(
        self,
        tokenizer: Any,
        ends: Iterable[int] = (),
        template: Mapping[str, Any] | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise LanguageModelError(
                "expected a model with a chat template, found none in its tokenizer; use an "
                "instruction-tuned model, or put a chat_template.jinja into its folder"
            )
        self.tokenizer = tokenizer

        # Any word in the template's text counts as a variable that it reads: one too many does no harm,
        # and one too few would refuse a setting that the template does read.
        self._template: str = tokenizer.get_chat_template()
        self._names = frozenset(re.findall(r"\w+", self._template))
        if self._reads(_CLOCK):
            self._template = _stopped_clock() + self._template
        self._more_ends = tuple(ends)
        self._variables = checked_template_kwargs(template)
        _refuse_reserved(self._variables, tokenizer)

        self._control = control_tokens(tokenizer)
        # The unknown token stands for unknown words, which are no forgery.
        self._control_ids = frozenset(self._control.values()) - {tokenizer.unk_token_id}
        # Of two control tokens one may begin with the other.
        longest_first = sorted(self._control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._tokens_by_text: dict[str, tuple[int, ...]] = {}

        # Templates without a system role raise (Gemma's) or leave the text out without a word.
        try:
            talk = [Message("system", _REPLY), Message("user", "Hello")]
            self._takes_system = _REPLY in self._render(talk)
        except LanguageModelError:
            self._takes_system = False

        self.end = self._end_of_message()
        self.ends = frozenset({self.end, *self._more_ends} | ({tokenizer.eos_token_id} - {None}))
        self._refuse_unread()

        # Caches of this object, not of its class, which would hold tokenizers for ever. A conversation
        # that goes on repeats all that it had before: without these, turning it into tokens and back
        # costs more with each turn.
        self.count = lru_cache(maxsize=8192)(lambda text: len(self.tokens([text])[0]))
        self._text = lru_cache(maxsize=65_536)(self._text_of)
        self._texts = lru_cache(maxsize=8192)(self._texts_of)
        self._written = lru_cache(maxsize=65_536)(self._written_of)
        self._turn = lru_cache(maxsize=8192)(self._turn_of)
        self._opening = lru_cache(maxsize=1024)(self._opening_of)
        self._skeleton = lru_cache(maxsize=1024)(self._control_tokens_of)
        self._turns: Turns | None = None

    def _refuse_unread(self) -> None:
        """Refuse variables that would change nothing."""
        for name in self._variables:
            # Whether to think is understood without the template, where that itself begins a thought:
            # `lead` closes it.
            if not self._reads(name) and not (name == THINKING and self.opened):
                raise OptionError(
                    f"expected variables that the model's chat template reads, found {name!r:.80}, which "
                    "is not in it; leave it out of chat_template_kwargs, or mend its name"
                )

    @cached_property
    def template_kwargs(self) -> dict[str, Any]:
        """The variables of the template that have a value here, as JSON data."""
        fixed = {THINKING: False, _DATE: DATE_STRING}
        return {name: value for name, value in fixed.items() if self._reads(name)} | self._variables

    def describe(self) -> dict[str, Any]:
        """Return what the template reads beside messages, for records; empty if it reads nothing."""
        description: dict[str, Any] = {}
        if self.template_kwargs:
            description["chat_template_kwargs"] = dict(self.template_kwargs)
        if self._reads(_CLOCK):
            description["chat_template_date"] = TODAY.date().isoformat()
        return description

    def thinks(self, asked: bool = False) -> bool:
        """Return whether the model thinks before it replies, if a request asks for it or does not."""
        return self._wants_thought(asked) and (self._reads(THINKING) or bool(self.opened))

    def _wants_thought(self, requested: bool) -> bool:
        return bool(self._variables.get(THINKING, requested))

    def chat_for(self, thinking: bool) -> ChatTokenizer:
        """Return what makes the prompts of requests that want a thought first, or want none."""
        is_fixed = THINKING in self._variables or not self._reads(THINKING)
        return self._thinking if thinking and not is_fixed else self

    @cached_property
    def _thinking(self) -> ChatTokenizer:
        return type(self)(self.tokenizer, self._more_ends, {**self._variables, THINKING: True})

    @cached_property
    def opened(self) -> str:
        """The beginning of a thought that the template itself writes: empty, or ``<think>`` and a line."""
        prompt = self._render([Message("user", "Hello")])
        if not prompt.rstrip().endswith(OPENS):
            return ""
        return prompt[prompt.rindex(OPENS) :]

    def _closing(self, request: LMRequest) -> str:
        """Return what ends a thought that the template has begun, where none is wanted; else nothing."""
        is_wanted = self._wants_thought(request.thinking)
        return "" if is_wanted or not self.opened else _UNUSED_BLOCK

    def lead(self, request: LMRequest) -> str:
        """Return the beginning of a reply that is given: the prefix, behind the end of a thought.

        What continues a given reply does not think first; nor does what scores or chooses.
        """
        prefix = valid_text(request.prefix)
        is_free = isinstance(request, Generate) and request.choices is None and not prefix
        if ENDS in prefix or not self.opened:
            return prefix
        return (self._closing(request) if is_free else _UNUSED_BLOCK) + prefix

    def reply_text(self, request: Generate, tokens: Sequence[int]) -> str:
        """Return the text of a generated reply, with the thought that its template has begun."""
        chat = self.chat_for(request.thinking)
        opened = "" if chat.lead(request) else chat.opened
        return opened + self.text(tokens, request.prefix)

    @classmethod
    def around(cls, tokenizer: Any) -> ChatTokenizer:
        """Return one around a tokenizer of the transformers library, or what is one already."""
        return tokenizer if isinstance(tokenizer, ChatTokenizer) else cls(tokenizer)

    @property
    def turns(self) -> Turns:
        """What the template puts around the user's message after a reply."""
        if self._turns is None:
            self._turns = Turns.of(self._render, self._tokenize, self.end, self.ends)
        return self._turns

    def prompts(self, requests: Sequence[LMRequest]) -> list[list[int] | LanguageModelError]:
        """Return the tokens of each request's conversation and prefix, or what is wrong with it."""
        chats = [self.chat_for(request.thinking) for request in requests]
        if all(chat is self for chat in chats):
            return self._prompts(requests)

        prompts: list[list[int] | LanguageModelError] = [[] for _ in requests]
        for chat in (self, self._thinking):
            indices = [index for index, request_chat in enumerate(chats) if request_chat is chat]
            chat_prompts = chat._prompts([requests[index] for index in indices])
            for index, prompt in zip(indices, chat_prompts, strict=True):
                prompts[index] = prompt
        return prompts

    def _prompts(self, requests: Sequence[LMRequest]) -> list[list[int] | LanguageModelError]:
        """Return what `prompts` does, all with this object's variables of the template."""
        # All whole conversations at once: a fast tokenizer works on the texts of a batch in parallel.
        whole = [request for request in requests if not getattr(request, "reply_ids", ())]
        rendered = iter(self._rendered(whole))

        prompts: list[list[int] | LanguageModelError] = []
        for request in requests:
            if isinstance(request, Generate) and request.reply_ids:
                prompts.append(self._continued(request))
            else:
                prompts.append(next(rendered))
        return prompts

    def _rendered(self, requests: Sequence[LMRequest]) -> list[list[int] | LanguageModelError]:
        """Return the tokens of conversations that the template renders as a whole, each only once."""
        # Samples of one prompt, as trainings ask for, are one conversation.
        texts: dict[_Conversation, str] = {}
        conversations: list[_Conversation | LanguageModelError] = []
        for request in requests:
            try:
                messages = self._checked(request.messages)
                key = _Conversation(messages, self.lead(request))
                if key not in texts:
                    texts[key] = self._render(messages) + self.defuse(key.lead)
                conversations.append(key)
            except LanguageModelError as error:
                conversations.append(error)

        tokens = self._tokenize(list(texts.values()))
        prompts = {
            key: self._without_forgery(prompt, key.messages)
            for key, prompt in zip(texts, tokens, strict=True)
        }
        return [
            key if isinstance(key, LanguageModelError) else prompts[key] for key in conversations
        ]

    def _opening_of(self, head: tuple[Message, ...]) -> list[int]:
        """Return the tokens of the messages before the first reply."""
        (prompt,) = self._rendered([Generate(head, thinking=True)])  # nothing is closed yet
        if isinstance(prompt, LanguageModelError):
            raise prompt
        return prompt

    def _continued(self, request: Generate) -> list[int] | LanguageModelError:
        """Return the tokens of a conversation that goes on token for token, or what is wrong with it.

        Its replies stay the tokens that were sampled: rendered and read again they may become others,
        and PaW's ratios would compare the probabilities of different tokens.
        """
        try:
            head, turns = conversation(self._checked(request.messages), request.reply_ids)

            # Where the template begins a thought and none is wanted, each reply began behind its end,
            # which is not among the sampled tokens. The next reply's is in its lead.
            closing, lead = self.tokens([self._closing(request), self.lead(request)])
            prompt = [*self._opening(head)]
            for reply, user_text, reply_ids in turns:
                prompt += closing
                prompt += self._turn(reply, user_text, reply_ids)
        except LanguageModelError as error:
            return error
        return prompt + lead

    def _turn_of(self, reply: str, user_text: str, reply_ids: Sequence[int]) -> list[int]:
        """Return the tokens of a reply (its text's, if `reply_ids` is empty) and the message after it."""
        reply_text = reply.removeprefix(self.opened)  # the template writes it, before the reply
        text_ids, user_ids = self.tokens([reply_text, self.turns.as_rendered(user_text)])
        if self._controls(user_ids):
            raise _forgery(user_text)
        return self.turns.after(reply_ids or text_ids, user_ids)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text by itself, as the continuation of some prompt."""
        # No `lru_cache`, which takes one text at a time: the missing ones are tokenized as one batch.
        cache = self._tokens_by_text
        missing = [text for text in texts if text not in cache]
        if missing:
            if len(cache) > 65_536:
                cache.clear()
                missing = list(texts)
            tokens = self._tokenize([self.defuse(valid_text(text)) for text in missing])
            cache.update(zip(missing, map(tuple, tokens), strict=True))
        return [list(cache[text]) for text in texts]

    def text(self, tokens: Sequence[int], prefix: str = "") -> str:
        """Return the text of generated tokens that follow `prefix`, without control tokens."""
        return self._text(tuple(tokens), prefix)

    def _text_of(self, tokens: tuple[int, ...], prefix: str) -> str:
        if not prefix:
            return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

        # Some tokenizers drop the space before the first word of a text: here it is not the first.
        before = self.tokens([prefix])[0]
        start = str(self.tokenizer.decode(before, skip_special_tokens=True))
        whole = str(self.tokenizer.decode([*before, *tokens], skip_special_tokens=True))
        return whole[len(start) :] if whole.startswith(start) else self.text(tokens)

    def texts(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each generated token, control tokens as they are written."""
        return self._texts(tuple(tokens))

    def _texts_of(self, tokens: tuple[int, ...]) -> tuple[str, ...]:
        texts: list[str] = []

        # A tokenizer may drop a first token's space: each is decoded behind its neighbor.
        start = 0
        neighbor = ""
        for end in range(1, len(tokens) + 1):
            text = self._written(*tokens[start:end])

            # The sign of bytes that are no character: the next token may complete it.
            is_whole = not text.endswith("\ufffd") or end == len(tokens) or end - start > _LONGEST
            texts.append(text[len(neighbor) :] if is_whole else "")
            if is_whole:
                start = end - 1
                neighbor = self._written(tokens[start])
        return tuple(texts)

    def _written_of(self, *tokens: int) -> str:
        return str(self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def defuse(self, text: str) -> str:
        """Return the text with a space inside whatever is written like a control token."""
        # More than once: two that overlap are one match, and only the first of them is broken by it.
        for _ in range(3):
            if not self._pattern.search(text):
                return text
            text = self._pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

        while self._pattern.search(text):  # a token of one sign: a space does not break it
            text = self._pattern.sub("", text)
        return text

    def _render(self, messages: Sequence[Message], reply_begins: bool = True) -> str:
        conversation = [
            {"role": message.role, "content": self.defuse(message.content)} for message in messages
        ]
        try:
            rendered = self.tokenizer.apply_chat_template(
                conversation,
                chat_template=self._template,
                add_generation_prompt=reply_begins,
                tokenize=False,
                **self.template_kwargs,
            )
        except Exception as error:  # a template is a program and may fail in any way
            roles = ", ".join(message.role for message in messages)
            raise LanguageModelError(
                f"expected a chat template that takes messages of {roles}, found one that fails: "
                f"{str(error).strip()[:200]!r}; mend chat_template.jinja in the model's folder"
            ) from error
        return str(rendered)

    def _reads(self, variable: str) -> bool:
        """Return whether the template's text names a variable."""
        return variable in self._names

    def _checked(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        checked = checked_messages(messages)
        return checked if self._takes_system else _without_system(checked)

    def _end_of_message(self) -> int:
        """Return the token that the template puts after an assistant's message, or else eos."""
        talk = [Message("user", "Hello"), Message("assistant", _REPLY)]
        rendered = self._render(talk, reply_begins=False)

        # The template's own end goes before eos, which may end texts and not messages (Qwen3-Base).
        _, reply, after_reply = rendered.rpartition(_REPLY)
        end_tokens = self._tokenize([after_reply])[0] if reply else []
        if end_tokens and end_tokens[0] in set(self.tokenizer.all_special_ids):
            return end_tokens[0]
        if self.tokenizer.eos_token_id is None:
            raise LanguageModelError(
                "expected a token that ends a message, found none; set eos_token in "
                "tokenizer_config.json"
            )
        return int(self.tokenizer.eos_token_id)

    def _control_tokens_of(self, form: tuple[tuple[str, bool], ...]) -> list[int]:
        """Return the control tokens that the template itself writes around such messages."""
        messages = [Message(role, "x" if full else "") for role, full in form]
        return self._controls(self._tokenize([self._render(messages)])[0])

    def _without_forgery(
        self, tokens: list[int], messages: tuple[Message, ...]
    ) -> list[int] | LanguageModelError:
        """Return the tokens if all control tokens among them are the template's own."""
        # Templates may write other tokens around an empty text: whether there is one is of the form.
        try:
            form = tuple((message.role, bool(message.content.strip())) for message in messages)
            expected = self._skeleton(form)
        except LanguageModelError as error:
            return error
        if self._controls(tokens) == expected:
            return tokens
        return _forgery(messages[-1].content)

    def _controls(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if token in self._control_ids]

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        # No special tokens: the template writes its own. Quietly: it warns of texts that are longer than
        # the model's context, and those are refused later, each with what to do.
        encoding = self.tokenizer(texts, add_special_tokens=False, verbose=False)
        token_lists: list[list[int]] = encoding["input_ids"]
        return token_lists


class _Conversation(NamedTuple):
    """A conversation with the beginning of its next reply."""

    messages: tuple[Message, ...]
    lead: str


def _refuse_reserved(variables: Mapping[str, Any], tokenizer: Any) -> None:
    """Refuse variables that are arguments of `apply_chat_template` itself."""
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    reserved = sorted(set(variables) & {*parameters, "messages"})
    if reserved:
        raise OptionError(
            f"chat_template_kwargs cannot set {reserved[0]!r}, which comap sets; give variables of the "
            "template alone, such as enable_thinking"
        )


def _without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the system's text in front of the first user message."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    if not system:
        return tuple(rest)

    for index, message in enumerate(rest):
        if message.role == "user":
            rest[index] = Message("user", "\n\n".join([*system, message.content]))
            return tuple(rest)
    raise LanguageModelError(
        "this model's chat template has no system role, and there is no user message to put the "
        "system's text in front of; add a user message"
    )


def _forgery(text: str) -> LanguageModelError:
    return LanguageModelError(
        f"the text of a message becomes control tokens: {text!r:.80}; take out what looks like one"
    )


class ChatLanguageModel(BaseLanguageModel):
    """What backends share that make prompts of tokens: a chat tokenizer, a context, and what is counted."""

    _chat: ChatTokenizer
    context: int | None

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without what a chat template puts around it."""
        return self._chat.count(text)

    def token_texts(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each token of a reply, control tokens as they are written."""
        return self._chat.texts(token_ids)

    def thinks(self, asked: bool = False) -> bool:
        """Return whether the model thinks before it replies, if a request asks for it or does not."""
        return self._chat.thinks(asked)

    def _check_length(self, prompt: Sequence[int], least: int, most: int | None = None) -> None:
        """Raise unless a prompt and the tokens that must follow it fit the context.

        Args:
            prompt: Tokens.
            least: How many tokens must follow.
            most: How many may follow, for the message, if these are others.
        """
        if self.context is not None and len(prompt) + least > self.context:
            raise LanguageModelError(
                f"the model's context has {self.context:,} tokens, but the prompt has "
                f"{len(prompt):,} and up to {most or least:,} follow; shorten the conversation "
                "(of agents: --prompts brief), or use a model with a longer context"
            )

    def _count(self, reply: LMReply) -> None:
        """Add a reply to what was done so far; tokens of scored texts count as read."""
        self.usage.requests += 1
        self.usage.prompt_tokens += reply.prompt_tokens
        if isinstance(reply, Completion):
            self.usage.completion_tokens += reply.completion_tokens
        elif isinstance(reply, Scores):
            self.usage.prompt_tokens += sum(map(len, reply.logprobs))
