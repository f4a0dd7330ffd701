"""From conversations to tokens and back, for models with a chat template.

The text of messages is not trusted: it comes from tools, web pages and other models. Whatever in it
is written like one of the model's control tokens (``<|im_end|>``) is broken up by a space, so that
no text can end its own message and speak as somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ..errors import LanguageModelError
from .base import Encode, Generate, Message, Score, Words
from .turns import Turns, conversation

__all__ = ["ChatTokenizer", "control_tokens"]

_ROLES = ("system", "user", "assistant")
_PROBE = "Xyzzy7"
_THOUGHT = ("<think>", "</think>")
_LONGEST = 5  # tokens in a character that is cut up, and the one before them


def control_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the tokens that text must not be able to write, with their ids.

    These are the special tokens and those added tokens that have a sign in them (``<tool_call>``);
    added words and added runs of blanks are ordinary text. So are the marks of a thought, where a
    tokenizer does not call them special: prompts must be able to ask for them, and within a message
    they end nothing.
    """
    found = {}
    for number, token in tokenizer.added_tokens_decoder.items():
        text = str(token)
        signs = any(not (letter.isalnum() or letter.isspace()) for letter in text)
        if text and (token.special or (signs and text not in _THOUGHT)):
            found[text] = number
    for number in tokenizer.all_special_ids:
        found[str(tokenizer.convert_ids_to_tokens(number))] = number
    return found


class ChatTokenizer:
    """Makes prompts of requests, tokens of texts, and texts of tokens.

    Attributes:
        tokenizer: The tokenizer of the transformers library.
        end: The token that ends an assistant's message.
        ends: All tokens that end generation; `end` is one of them.

    Args:
        tokenizer: A tokenizer that has a chat template.
        ends: Tokens that end generation, from the model's configuration.

    Raises:
        LanguageModelError: There is no chat template, it cannot be used, or no token ends a message.
    """

    def __init__(self, tokenizer: Any, ends: Iterable[int] = ()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise LanguageModelError(
                "expected a model with a chat template, found none in its tokenizer; use an "
                "instruction-tuned model, or put a chat_template.jinja into its folder"
            )
        self.tokenizer = tokenizer
        self._control = control_tokens(tokenizer)
        # The unknown token stands for unknown words, which are no forgery.
        self._control_ids = frozenset(self._control.values()) - {tokenizer.unk_token_id}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._known: dict[str, tuple[int, ...]] = {}
        self._takes_system = self._system_is_shown()
        self.end = self._end_of_message()
        self.ends = frozenset({self.end, *ends} | ({tokenizer.eos_token_id} - {None}))
        self.count = lru_cache(maxsize=8192)(self._count)
        self._skeleton = lru_cache(maxsize=1024)(self._control_tokens_of)
        self._turns: Turns | None = None

    @property
    def turns(self) -> Turns:
        """What the template puts around the user's message after a reply.

        Raises:
            LanguageModelError: The template does not show what is said.
        """
        if self._turns is None:
            self._turns = Turns.of(self._render, self._tokenise, self.end, self.ends)
        return self._turns

    # -- prompts ---------------------------------------------------------------------------------

    def prompts(
        self, requests: Sequence[Generate | Score | Words | Encode]
    ) -> list[list[int] | LanguageModelError]:
        """Return the tokens of each request's conversation and prefix, or what is wrong with it."""
        whole = [request for request in requests if not getattr(request, "reply_ids", ())]
        found = iter(self._rendered(whole))
        return [
            self._continued(request)
            if isinstance(request, Generate) and request.reply_ids
            else next(found)
            for request in requests
        ]

    def _rendered(
        self, requests: Sequence[Generate | Score | Words | Encode]
    ) -> list[list[int] | LanguageModelError]:
        """Return the tokens of conversations that the template renders as a whole."""
        written: dict[tuple[tuple[Message, ...], str], int] = {}
        texts: list[str] = []
        places: list[int | LanguageModelError] = []
        for request in requests:
            try:
                messages = self._checked(request.messages)
                key = messages, _text(request.prefix)
                if key not in written:
                    texts.append(self._render(messages) + self.defuse(key[1]))
                    written[key] = len(written)
                places.append(written[key])
            except LanguageModelError as error:
                places.append(error)
        found = [
            self._without_forgery(tokens, messages)
            for tokens, (messages, _) in zip(self._tokenise(texts), written, strict=True)
        ]
        return [
            place if isinstance(place, LanguageModelError) else found[place] for place in places
        ]

    def _continued(self, request: Generate) -> list[int] | LanguageModelError:
        """Return the tokens of a conversation that goes on token for token."""
        try:
            head, later = conversation(self._checked(request.messages), request.reply_ids)
            turns = self.turns
        except LanguageModelError as error:
            return error
        (found,) = self._rendered([Generate(head)])
        if isinstance(found, LanguageModelError):
            return found
        for reply, told, ids in later:
            spoken, heard = self.tokens([reply, turns.shown(told)])
            if self._controls(heard):
                return LanguageModelError(
                    f"the text of a message becomes control tokens: {told!r:.80}; take out what "
                    "looks like one"
                )
            found = [*found, *turns.after(ids or spoken, heard)]
        return found + self.tokens([request.prefix])[0] if request.prefix else found

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text by itself, as the continuation of some prompt.

        A text is not tokenised together with what stands before it, so that its tokens do not
        depend on the prompt. Tokenizers that put a space before every text do so here too.
        """
        known, missing = self._known, [text for text in texts if text not in self._known]
        if missing:
            if len(known) > 65_536:
                known.clear()
                missing = list(texts)
            found = self._tokenise([self.defuse(_text(text)) for text in missing])
            known.update(zip(missing, map(tuple, found), strict=True))
        return [list(known[text]) for text in texts]

    def text(self, tokens: Sequence[int], prefix: str = "") -> str:
        """Return the text of generated tokens that follow `prefix`, without control tokens."""
        if not prefix:
            return str(self.tokenizer.decode(tokens, skip_special_tokens=True))
        # Some tokenizers drop the space before the first word of a text: here it is not the first.
        before = self.tokens([prefix])[0]
        start = str(self.tokenizer.decode(before, skip_special_tokens=True))
        whole = str(self.tokenizer.decode([*before, *tokens], skip_special_tokens=True))
        return whole[len(start) :] if whole.startswith(start) else self.text(tokens)

    def texts(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each generated token, control tokens as they are written.

        A token that ends inside a character is empty, and a later one has the character.
        """
        found: list[str] = []
        start, before = (
            0,
            "",
        )  # a tokenizer may drop the space of a first token: decode its neighbour
        for end in range(1, len(tokens) + 1):
            text = self._as_written(tokens[start:end])
            whole = not text.endswith("\ufffd") or end == len(tokens) or end - start > _LONGEST
            found.append(text[len(before) :] if whole else "")
            if whole:
                start, before = end - 1, self._as_written(tokens[end - 1 : end])
        return tuple(found)

    def _as_written(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def defuse(self, text: str) -> str:
        """Return the text with a space inside whatever is written like a control token."""
        for _ in range(3):
            if not self._pattern.search(text):
                return text
            text = self._pattern.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        while self._pattern.search(text):  # a token of one sign: a space does not break it
            text = self._pattern.sub("", text)
        return text

    # -- what the template does ------------------------------------------------------------------

    def _render(self, messages: Sequence[Message], reply_begins: bool = True) -> str:
        conversation = [
            {"role": message.role, "content": self.defuse(message.content)} for message in messages
        ]
        try:
            rendered = self.tokenizer.apply_chat_template(
                conversation,
                add_generation_prompt=reply_begins,
                tokenize=False,
                enable_thinking=False,
            )
        except Exception as error:  # a template is a program and may fail in any way
            roles = ", ".join(message.role for message in messages)
            raise LanguageModelError(
                f"the chat template refuses messages of {roles}: {_first_line(error)}"
            ) from error
        return str(rendered)

    def _checked(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages that the template is given, or raise what is wrong with them."""
        if not messages:
            raise LanguageModelError("expected at least one message, found none")
        checked = []
        for message in messages:
            if not isinstance(message, tuple) or len(message) != 2:
                raise LanguageModelError(
                    f"expected a message's role and text, found {message!r:.80}"
                )
            role, content = message
            if role not in _ROLES:
                raise LanguageModelError(
                    f"expected a message of {', '.join(_ROLES)}, found {role!r}"
                )
            checked.append(Message(role, _text(content)))
        return tuple(checked) if self._takes_system else _without_system(checked)

    def _system_is_shown(self) -> bool:
        try:
            return _PROBE in self._render([Message("system", _PROBE), Message("user", "Hello")])
        except LanguageModelError:
            return False

    def _end_of_message(self) -> int:
        """Return the token that the template puts after an assistant's message, or else eos."""
        talk = [Message("user", "Hello"), Message("assistant", _PROBE)]
        rendered = self._render(talk, reply_begins=False)
        after = rendered.rpartition(_PROBE)[2]
        found = self._tokenise([after])[0] if _PROBE in rendered else []
        if found and found[0] in set(self.tokenizer.all_special_ids):
            return found[0]
        if self.tokenizer.eos_token_id is None:
            raise LanguageModelError(
                "expected a token that ends a message, found none; set eos_token in "
                "tokenizer_config.json"
            )
        return int(self.tokenizer.eos_token_id)

    def _control_tokens_of(self, form: tuple[tuple[str, bool], ...]) -> list[int]:
        """Return the control tokens that the template itself writes around such messages."""
        messages = [Message(role, "x" if full else "") for role, full in form]
        return self._controls(self._tokenise([self._render(messages)])[0])

    def _without_forgery(
        self, tokens: list[int], messages: tuple[Message, ...]
    ) -> list[int] | LanguageModelError:
        """Return the tokens if all control tokens among them are the template's own."""
        try:
            expected = self._skeleton(_form(messages))
        except LanguageModelError as error:
            return error
        found = self._controls(tokens)
        if found == expected:
            return tokens
        return LanguageModelError(
            f"the text of a message becomes control tokens: expected {len(expected)} from the chat "
            f"template, found {len(found)}; take out what looks like a control token"
        )

    def _controls(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if token in self._control_ids]

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        found: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        return found

    def _count(self, text: str) -> int:
        return len(self.tokens([text])[0])


def _without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the system's text in front of the first user message."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    if not system:
        return tuple(rest)
    for i, message in enumerate(rest):
        if message.role == "user":
            rest[i] = Message("user", "\n\n".join([*system, message.content]))
            return tuple(rest)
    raise LanguageModelError(
        "this model's chat template has no system role, and there is no user message to put the "
        "system's text in front of; add a user message"
    )


def _form(messages: Sequence[Message]) -> tuple[tuple[str, bool], ...]:
    return tuple((message.role, bool(message.content.strip())) for message in messages)


def _text(value: Any) -> str:
    """Return a text that can be encoded, or raise that it is none."""
    if not isinstance(value, str):
        raise LanguageModelError(f"expected text, found {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can carry
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
