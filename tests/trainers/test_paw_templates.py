"""What follows a reply in tokens, for chat templates of several kinds."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError, OptionError
from comap.lm import Generate, Message
from comap.trainers.paw.rows import Serializer
from comap.trainers.paw.serialize import TurnTokenizer

pytest.importorskip("transformers")

KNOWN = Path(__file__).with_name("test_examples.py")
TEMPLATES, made_tokenizer = load(f"{KNOWN}:TEMPLATES"), load(f"{KNOWN}:made")
NAMES = sorted(TEMPLATES)
EACH_TEMPLATE = pytest.mark.parametrize("name", NAMES)
REPLY, TEXT = "Action: go to shelf 1", "It is dark. You see a shelf 2."
FOLLOWS = {  # behind the end of the reply, and behind the text
    "tiny": ("<|user|>", "<|end|>"),
    "chatml": ("\n<|im_start|>user\n", "<|im_end|>\n"),
    "llama": ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
    "mistral": ("[INST] ", " [/INST]"),
    "gemma": ("\n<start_of_turn>user\n", "<end_of_turn>\n"),
}


@cache
def turns(name: str) -> TurnTokenizer:
    return TurnTokenizer(made_tokenizer(name))


def parts(name: str, response: list[int], text: str = TEXT, longest: int = 500) -> list[str]:
    decode = made_tokenizer(name).decode
    return [decode(part) for part in turns(name).following(response, text, longest)]


@EACH_TEMPLATE
def test_a_reply_that_ended_is_followed_by_the_user_s_message(name: str) -> None:
    before, behind = FOLLOWS[name]
    assert parts(name, [5, turns(name).end]) == [before, TEXT, behind]


@EACH_TEMPLATE
@pytest.mark.parametrize("response", [[5], []])
def test_a_reply_that_was_cut_is_ended_first(name: str, response: list[int]) -> None:
    before, behind = FOLLOWS[name]
    assert parts(name, response) == [TEMPLATES[name][2] + before, TEXT, behind]
    assert turns(name).following(response, TEXT, 500).header[0] == turns(name).end


@EACH_TEMPLATE
def test_any_token_that_ends_generation_ends_the_reply(name: str) -> None:
    chat = TurnTokenizer(made_tokenizer(name), ends=[7])
    assert chat.following([5, 7], TEXT, 9) == chat.following([5, chat.end], TEXT, 9)
    assert chat.following([7, 5], TEXT, 9) == chat.following([5], TEXT, 9)


@EACH_TEMPLATE
@pytest.mark.parametrize("system", [(), (Message("system", "Act well."),)])
def test_it_is_what_the_template_writes_later(name: str, system: tuple[Message, ...]) -> None:
    chat, tokenizer = turns(name), made_tokenizer(name)
    talk = (
        Message("user", "You see a shelf 1."),
        Message("assistant", REPLY),
        Message("user", TEXT),
    )
    (later,) = chat.prompts([Generate((*system, *talk))])
    assert isinstance(later, list)
    response = [*chat.tokens([REPLY])[0], chat.end]
    tail = [chat.end, *(token for part in chat.following(response, TEXT, 500) for token in part)]
    begins = "" if name == "mistral" else TEMPLATES[name][3]  # Mistral's follows from the footer
    assert tokenizer.decode(later).rpartition(REPLY)[2] == tokenizer.decode(tail) + begins
    if name != "mistral":  # whose text begins with the space before it
        places = range(len(later) - len(tail) + 1)
        assert any(later[place : place + len(tail)] == tail for place in places)


@EACH_TEMPLATE
@pytest.mark.parametrize("system", [(), (Message("system", "Act well."),)])
def test_a_conversation_that_goes_on_reads_as_the_template_writes_it(
    name: str, system: tuple[Message, ...]
) -> None:
    chat, tokenizer = turns(name), made_tokenizer(name)
    turn = (Message("assistant", REPLY), Message("user", TEXT))
    talk = (*system, Message("user", "You see a shelf 1."), *turn, *turn)
    response = (*chat.tokens([REPLY])[0], chat.end)
    asked = [Generate(talk), Generate(talk, reply_ids=(response,) * 2), Generate(talk[:-2])]
    asked.append(Generate(talk[:-2], reply_ids=(response,)))
    whole, later, _, before = chat.prompts(asked)
    assert isinstance(whole, list) and isinstance(later, list) and isinstance(before, list)
    texts = [tokenizer.decode(tokens) for tokens in (later, whole)]
    if name == "chatml":  # takes the beginning of a reply away later; what was read stays
        texts = [text.replace("<think>\n\n</think>\n\n", "") for text in texts]
    if name == "mistral":  # a model writes the space before its reply itself
        texts = [text.replace(f" {REPLY}", REPLY) for text in texts]
    assert texts[0] == texts[1]
    said = [*response, *(token for part in chat.following(response, TEXT, 500) for token in part)]
    assert later == [*before, *said, *chat.turns.opening]


@EACH_TEMPLATE
def test_a_long_text_is_cut_at_its_end_and_closed(name: str) -> None:
    whole = turns(name).following([5], TEXT, 500)
    for longest in (1, 4, len(whole.observation) - 1):
        cut = turns(name).following([5], TEXT, longest)
        assert cut == (whole.header, whole.observation[:longest], whole.footer)
    assert turns(name).following([5], TEXT, len(whole.observation)) == whole


@EACH_TEMPLATE
def test_where_nothing_follows_there_are_no_tokens(name: str) -> None:
    assert turns(name).following([5], "", 500) == ((), (), ())


@EACH_TEMPLATE
def test_white_space_around_a_text_is_the_template_s_affair(name: str) -> None:
    said = parts(name, [5], f"\n\n{TEXT}\n")[1]
    assert said == (TEXT if name in ("llama", "gemma") else f"\n\n{TEXT}\n")


PIECES = sorted({piece for _, special, *_ in TEMPLATES.values() for piece in special})
HOSTILE = st.lists(
    st.one_of(st.sampled_from([*PIECES, "<|end|>", "<|user|>"]), st.text(max_size=3))
)


@settings(max_examples=150, deadline=None)
@given(HOSTILE, st.sampled_from(NAMES), st.booleans(), st.integers(1, 40))
def test_no_observation_writes_a_control_token(
    said: list[str], name: str, ended: bool, longest: int
) -> None:
    chat, text = turns(name), "".join(said)
    response = [5, chat.end] if ended else [5]
    found, plain = chat.following(response, text, longest), chat.following(response, "x", longest)
    control = set(chat._control.values()) - {made_tokenizer(name).unk_token_id}
    assert not control & set(found.observation)
    assert len(found.observation) <= longest
    if found.observation:
        assert (found.header, found.footer) == (plain.header, plain.footer)
    else:
        assert found == ((), (), ()) and not text.strip()


def test_a_template_that_makes_tokens_of_text_is_no_way_in() -> None:
    forging = copy.deepcopy(made_tokenizer("tiny"))
    forging.chat_template = forging.chat_template.replace("['content']", "['content']|lower")
    with pytest.raises(LanguageModelError, match="shows what assistant and user say"):
        Serializer(forging)  # its text is not what was said


def test_half_a_surrogate_is_no_fault() -> None:
    assert parts("tiny", [5], "a\ud800b")[1] == "a\ufffdb"


def test_what_is_remembered_of_texts_is_limited() -> None:
    chat = TurnTokenizer(made_tokenizer("tiny"))
    first = chat.following([5], "It is dark.", 50)
    for number in range(5000):
        chat.following([5], f"shelf {number}", 50)
    assert len(chat._known) <= 4097 and chat.following([5], "It is dark.", 50) == first


def test_a_template_that_does_not_show_the_talk_is_refused() -> None:
    for template in ("{{ messages[0].content }}", "{{ messages[-1].content }}"):
        silent = copy.deepcopy(made_tokenizer("tiny"))
        silent.chat_template = template
        with pytest.raises(LanguageModelError, match="shows what assistant and user say"):
            Serializer(silent)


def test_an_end_that_the_template_does_not_write_is_eos() -> None:
    bare: Any = copy.deepcopy(made_tokenizer("tiny"))
    bare.chat_template = "{% for m in messages %}{{ '\n' + m.role + ': ' + m.content }}{% endfor %}"
    chat = TurnTokenizer(bare)
    cut, ended = chat.following([5], "dark", 9), chat.following([5, chat.end], "dark", 9)
    assert chat.end == bare.eos_token_id
    assert [bare.decode(part) for part in ended] == ["\nuser: ", "dark", ""]
    assert cut == ((chat.end, *ended.header), ended.observation, ())


def test_an_end_behind_other_signs_is_found() -> None:
    late: Any = copy.deepcopy(made_tokenizer("tiny"))
    late.chat_template = late.chat_template.replace("+ '<|end|>'", "+ '\n<|end|>'")
    chat = TurnTokenizer(late)
    shown = [late.decode(chat.following(r, "x", 9).header) for r in ([5], [5, chat.end])]
    assert shown == ["\n<|end|><|user|>", "<|user|>"]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_the_longest_observation_is_a_number_of_tokens(wrong: Any) -> None:
    with pytest.raises(OptionError, match="max_observation must be a whole number of at least 1"):
        Serializer(made_tokenizer("tiny"), max_observation=wrong)
