"""What chat templates of real models are told: whether to think, and which day it is."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from comap.errors import OptionError
from comap.lm import Encode, Generate, HFLanguageModel, Message, NextWord, Sampling, Score
from comap.lm.chat import ChatTokenizer
from comap.lm.tiny import tokenizer_of
from kits.template_families import CONTROL, CORPUS, ends_with, model_folder, squeezed, tokenizer

pytest.importorskip("torch")
pytest.importorskip("trl")

TALK = (Message("user", "You see a fridge."),)
OFF, ON = "<think>\n\n</think>\n\n", "<think>\n"


def text_of(chat: ChatTokenizer, request: Any) -> str:
    (tokens,) = chat.prompts([request])
    return str(chat.tokenizer.decode(tokens))


@pytest.mark.parametrize(
    "request_",
    [
        Generate(TALK),
        Encode(TALK),
        Score(TALK, ("a",)),
        NextWord(TALK, ("a",)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_qwen3_thinks_where_a_request_asks_for_it(request_: Any) -> None:
    from dataclasses import replace

    chat = ChatTokenizer(tokenizer("qwen3"))
    thinking_request = replace(request_, thinking=True)
    assert ends_with(text_of(chat, request_), OFF)
    assert ends_with(text_of(chat, replace(request_, thinking=False)), OFF)
    assert ends_with(text_of(chat, thinking_request), "<|im_start|>assistant")
    prompts = chat.prompts([thinking_request, request_, thinking_request])
    assert prompts[0] == prompts[2] != prompts[1], "requests of both kinds in one batch"


def test_what_the_model_was_made_with_is_stronger_than_a_request() -> None:
    chat = ChatTokenizer(tokenizer("qwen3"), (), {"enable_thinking": True})
    assert ends_with(text_of(chat, Generate(TALK, thinking=False)), "<|im_start|>assistant")
    chat = ChatTokenizer(tokenizer("qwen3"), (), {"enable_thinking": False})
    assert ends_with(text_of(chat, Generate(TALK, thinking=True)), OFF)


def test_who_thinks_is_known() -> None:
    qwen = ChatTokenizer(tokenizer("qwen3"))
    assert not qwen.thinks() and not qwen.thinks(False) and qwen.thinks(True)
    assert ChatTokenizer(tokenizer("qwen3"), (), {"enable_thinking": True}).thinks(False)
    r1 = tokenizer("deepseek_r1_distill")
    assert ChatTokenizer(r1).thinks(True) and not ChatTokenizer(r1).thinks(False)
    assert ChatTokenizer(r1, (), {"enable_thinking": True}).thinks(False)
    assert not ChatTokenizer(tokenizer("llama3_2")).thinks(True), "there is nothing to switch on"
    assert not ChatTokenizer(tokenizer_of(CORPUS, 400)).thinks(True)


def test_a_prompt_of_llama_3_2_is_the_same_on_every_day(monkeypatch: Any) -> None:
    import transformers.utils.chat_template_utils as rendering

    class Tomorrow(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Tomorrow:
            return cls(2031, 5, 9)

    chat = ChatTokenizer(tokenizer("llama3_2"))
    today = text_of(chat, Generate(TALK))
    monkeypatch.setattr(rendering, "datetime", Tomorrow)
    rendering._compile_jinja_template.cache_clear()
    assert text_of(chat, Generate(TALK)) == today
    assert squeezed("Today Date: 26 Jul 2024") in squeezed(today)
    assert chat.describe() == {
        "chat_template_kwargs": {"date_string": "26 Jul 2024"},
        "chat_template_date": "2024-07-26",
    }
    dated_chat = ChatTokenizer(tokenizer("llama3_2"), (), {"date_string": "1 Mar 2026"})
    assert squeezed("Today Date: 1 Mar 2026") in squeezed(text_of(dated_chat, Generate(TALK)))
    assert dated_chat.describe()["chat_template_kwargs"] == {"date_string": "1 Mar 2026"}


def test_templates_that_only_have_a_clock_are_told_that_day_too() -> None:
    clock_tokenizer = tokenizer_of(CORPUS, 400)
    clock_tokenizer.chat_template = (
        "{{ strftime_now('%Y-%m-%d') }} " + clock_tokenizer.chat_template
    )
    chat = ChatTokenizer(clock_tokenizer)
    assert squeezed(text_of(chat, Generate(TALK))).startswith("2024-07-26")
    assert chat.describe() == {"chat_template_date": "2024-07-26"}


def test_a_template_that_reads_nothing_is_told_nothing() -> None:
    assert ChatTokenizer(tokenizer_of(CORPUS, 400)).describe() == {}


@pytest.mark.parametrize(
    "given", [{"tools": []}, {"tokenize": True}, {"a b": 1}, {"x": {1}}, [("x", 1)] * 2 + ["y"]]
)
def test_variables_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="chat_template_kwargs"):
        ChatTokenizer(tokenizer("qwen3"), (), given)


def test_variables_that_the_template_does_not_read_are_refused() -> None:
    with pytest.raises(OptionError, match="enable_thinkin"):
        ChatTokenizer(tokenizer("qwen3"), (), {"enable_thinkin": True})
    with pytest.raises(OptionError, match="enable_thinking"):
        ChatTokenizer(tokenizer("llama3_2"), (), {"enable_thinking": True})


def test_a_thought_that_nobody_wants_is_closed() -> None:
    chat = ChatTokenizer(tokenizer("deepseek_r1_distill"))
    request = Generate(TALK)
    assert ends_with(text_of(chat, request), f"{ON}\n</think>")
    assert "<think>" not in chat.reply_text(request, chat.tokens(["go"])[0])


@pytest.mark.parametrize("family", ["qwen3_5_think", "deepseek_r1_distill"])
def test_a_thought_that_the_template_begins_is_told_and_closed(family: str) -> None:
    chat = ChatTokenizer(tokenizer(family))
    free = Generate(TALK, thinking=True)
    assert ends_with(text_of(chat, free), ON)
    words = chat.tokens(["go to fridge"])[0]
    assert chat.reply_text(free, words).startswith(ON) and "go to fridge" in chat.reply_text(
        free, words
    )
    prefixed = Generate(TALK, prefix="Action:", thinking=True)
    assert ends_with(text_of(chat, prefixed), f"{ON}\n</think>\n\nAction:"), (
        "the prefix is no thought"
    )
    assert not chat.reply_text(prefixed, words).startswith(ON)
    choice_request = Generate(TALK, choices=("a", "b"), thinking=True)
    assert ends_with(text_of(chat, choice_request), "</think>")
    assert ends_with(text_of(chat, Score(TALK, ("a",), thinking=True)), "</think>")
    thought = "<think>So.</think>\nAction:"
    continued = text_of(chat, Generate(TALK, prefix=thought, thinking=True))
    assert squeezed(continued).count("</think>") == 1


@pytest.mark.parametrize("family", list(CONTROL))
@pytest.mark.parametrize("thinking", [False, True])
def test_a_conversation_goes_on_token_for_token(family: str, thinking: bool) -> None:
    chat = ChatTokenizer(tokenizer(family))
    reply = tuple(chat.tokens(["<think>open the fridge</think><action>open</action>"])[0])
    turn = (Message("assistant", "what was said"), Message("user", "You see a shelf 2."))
    first, second, third = chat.prompts(
        [
            Generate((*TALK, *turn * number), reply_ids=(reply,) * number, thinking=thinking)
            for number in range(3)
        ]
    )
    assert isinstance(first, list) and isinstance(second, list) and isinstance(third, list)
    assert second[: len(first) + len(reply)] == [*first, *reply], "as sampled, thought and all"
    assert third[: len(second) + len(reply)] == [*second, *reply]
    user_turn = second[len(first) + len(reply) :]
    assert third[len(second) + len(reply) :] == user_turn, "each turn in the same tokens"
    opening = len(chat.chat_for(thinking).turns.opening)
    assert first[-opening:] == user_turn[-opening:], "each reply begins alike"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return model_folder(tmp_path_factory.mktemp("qwen") / "model", "qwen3")


def test_the_option_of_a_model_is_in_its_config_and_in_its_prompts(folder: Any) -> None:
    quiet = HFLanguageModel(folder)
    thinks = HFLanguageModel(folder, chat_template_kwargs={"enable_thinking": True})
    assert quiet.config()["chat_template_kwargs"] == {"enable_thinking": False}
    assert thinks.config()["chat_template_kwargs"] == {"enable_thinking": True}
    ask = Generate(TALK, Sampling(max_new_tokens=4))
    sizes = [model.generate([ask])[0].prompt_tokens for model in (quiet, thinks)]  # type: ignore[union-attr]
    assert sizes[0] > sizes[1], "without a thought there is an empty one in the prompt"
    thinking_request = Generate(TALK, Sampling(max_new_tokens=4), thinking=True)
    assert quiet.generate([thinking_request])[0] == thinks.generate([ask])[0]


def test_a_stop_text_inside_a_thought_does_not_end_the_reply() -> None:
    from comap.lm.thoughts import end_of_thought, first_stop

    text = "<think>An Action: perhaps.\nObservation: no</think>\nAction: go\nObservation: x"
    assert text[: first_stop(text, ("\nObservation:",))].endswith("Action: go")
    assert first_stop("<think>An Action: per", ("Action:",)) is None
    assert first_stop("Thought: an Action: go", ("Action:", "go")) == 12
    assert end_of_thought("no <think> at the start") == 0
