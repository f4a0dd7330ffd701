from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.errors import LanguageModelError
from comap.lm.base import Generate, Message
from comap.lm.chat import ChatTokenizer
from comap.lm.tiny import tokenizer_of

pytest.importorskip("transformers")

CORPUS = ["You see a cabinet 1, a shelf 2 and a fridge; go to take open close"] * 2
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
DROPS_SYSTEM = NO_SYSTEM.replace(
    "{{ raise_exception('no system') }}{% endif %}", "{% else %}"
).replace("{% endfor %}", "{% endif %}{% endfor %}")


def tokenizer(template=None, extra_tokens=()):
    chat_tokenizer = tokenizer_of(CORPUS, 400)
    chat_tokenizer.chat_template = template or chat_tokenizer.chat_template
    chat_tokenizer.add_special_tokens(
        {"extra_special_tokens": [*chat_tokenizer.all_special_tokens[2:], *extra_tokens]}
    )
    return chat_tokenizer


TINY = ChatTokenizer(tokenizer())
QWEN = tokenizer(CHATML, ("<|im_start|>", "<|im_end|>"))
QWEN.add_tokens(["<think>", "</think>", "<tool_call>", "countertop", "   "])
QWEN = ChatTokenizer(QWEN, [1])
CONTROL = sorted(QWEN._control)


def prompt(chat, *messages, prefix=""):
    request = Generate(tuple(Message(*message) for message in messages), prefix=prefix)
    (token_ids,) = chat.prompts([request])
    assert isinstance(token_ids, list), token_ids
    return token_ids


def controls(chat, tokens):
    return [token for token in tokens if token in chat._control.values()]


def test_control_tokens_are_those_that_no_text_may_write():
    assert {"<|im_end|>", "<tool_call>", "<|end|>", "<|pad|>"} <= set(CONTROL)
    assert not {"<think>", "</think>"} & set(CONTROL)  # prompts ask for thoughts
    assert not {"countertop", "   "} & set(CONTROL)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.one_of(st.sampled_from(CONTROL), st.text(max_size=4), st.sampled_from("<|> "))),
    st.lists(st.sampled_from(CONTROL), max_size=2),
)
def test_no_text_becomes_a_control_token(parts, prefix):
    text = "".join(parts)
    for chat in (TINY, QWEN):
        talk = [("system", text), ("user", text), ("assistant", text), ("user", text)]
        harmless = [(role, "x" if text.strip() else "") for role, _ in talk]
        token_ids = prompt(chat, *talk, prefix="".join(prefix))
        assert controls(chat, token_ids) == controls(chat, prompt(chat, *harmless))
        assert not controls(chat, chat.tokens([text])[0])


def test_nested_and_split_control_tokens_stay_broken():
    text = "<|im_<|im_end|>end|> <<|end|>|end|> < |end|>"
    assert not controls(QWEN, QWEN.tokens([text])[0])
    assert not any(token in QWEN.defuse(text) for token in CONTROL)
    plain = "Nothing to see here: a < b, |x|, c > d."
    assert QWEN.defuse(plain) == plain


def test_a_template_that_forges_tokens_is_found_out():
    template = TINY.tokenizer.chat_template.replace(
        "message['content']", "message['content']|lower"
    )
    chat = ChatTokenizer(tokenizer(template))
    (reply,) = chat.prompts([Generate((Message("user", "x <|END|> y"),))])
    assert isinstance(reply, LanguageModelError) and "control tokens" in str(reply)


def test_the_prompt_is_the_template_then_the_prefix():
    token_ids = prompt(QWEN, ("user", "go to shelf 2"), prefix="Action:")
    text = QWEN.tokenizer.decode(token_ids)
    assert text == (
        "<|im_start|>user\ngo to shelf 2<|im_end|>\n<|im_start|>assistant\n<think></think>Action:"
    )


def test_the_end_of_a_message_is_what_the_template_says():
    assert QWEN.tokenizer.decode([QWEN.end]) == "<|im_end|>"
    assert QWEN.ends == {QWEN.end, QWEN.tokenizer.eos_token_id, 1}
    assert TINY.end == TINY.tokenizer.eos_token_id


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_without_a_system_role_its_text_is_the_users(template):
    chat = ChatTokenizer(tokenizer(template))
    token_ids = prompt(chat, ("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"))
    assert token_ids == prompt(chat, ("user", "Be brief.\n\nHello"), ("assistant", "Hi"))
    (reply,) = chat.prompts([Generate((Message("system", "Be brief."),))])
    assert isinstance(reply, LanguageModelError) and "user message" in str(reply)


def test_a_tokenizer_without_a_template_is_refused():
    bare = tokenizer()
    bare.chat_template = None
    with pytest.raises(LanguageModelError, match="chat template"):
        ChatTokenizer(bare)


@given(st.text(max_size=20))
def test_text_comes_back_with_and_without_a_prefix(text):
    if TINY.defuse(text) != text:
        return
    text = text.encode("utf-8", "replace").decode()
    tokens = TINY.tokens([text])[0]
    assert TINY.text(tokens) == text == TINY.text(tokens, "Action: go")
    assert TINY.count(text) == len(tokens)
