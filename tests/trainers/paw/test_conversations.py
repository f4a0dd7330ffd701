"""Conversations in tokens, for chat templates of several kinds: what follows a reply, and rows of them."""

from __future__ import annotations

import copy
from functools import cache
from itertools import pairwise

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.agents import create_agent
from comap.errors import LanguageModelError
from comap.lm import Generate, Message
from comap.lm.chat import ChatTokenizer
from comap.lm.prompts import CUT
from comap.lm.replay import request_key, request_to_json
from comap.lm.tiny import Row, encode_rows, tokenizer_of
from comap.trainers.paw.rollouts import Group, roll_out
from comap.trainers.paw.rows import Serializer, TurnTokenizer
from kits.handwritten_templates import TEMPLATES
from kits.handwritten_templates import template_tokenizer as made_tokenizer
from kits.paw import model_folder, watched_generation

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SIZES = {"context": "concat", "max_length": 2048, "draft_tokens": 12, "observation_tokens": 200}
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
def turns(name):
    return TurnTokenizer(made_tokenizer(name))


def parts(name, response, text=TEXT, longest=500):
    decode = made_tokenizer(name).decode
    return [decode(part) for part in turns(name).following(response, text, longest)]


@EACH_TEMPLATE
def test_a_reply_that_ended_is_followed_by_the_user_s_message(name):
    before, behind = FOLLOWS[name]
    assert parts(name, [5, turns(name).end]) == [before, TEXT, behind]


@EACH_TEMPLATE
@pytest.mark.parametrize("response", [[5], []])
def test_a_reply_that_was_cut_is_ended_first(name, response):
    before, behind = FOLLOWS[name]
    assert parts(name, response) == [TEMPLATES[name][2] + before, TEXT, behind]
    assert turns(name).following(response, TEXT, 500).header[0] == turns(name).end


@EACH_TEMPLATE
@pytest.mark.parametrize("system", [(), (Message("system", "Act well."),)])
def test_a_conversation_that_goes_on_reads_as_the_template_writes_it(name, system):
    chat, tokenizer = turns(name), made_tokenizer(name)
    turn = (Message("assistant", REPLY), Message("user", TEXT))
    talk = (*system, Message("user", "You see a shelf 1."), *turn, *turn)
    response = (*chat.tokens([REPLY])[0], chat.end)
    requests = [Generate(talk), Generate(talk, reply_ids=(response,) * 2), Generate(talk[:-2])]
    requests.append(Generate(talk[:-2], reply_ids=(response,)))
    whole, later, _, before = chat.prompts(requests)
    texts = [tokenizer.decode(tokens) for tokens in (later, whole)]
    if name == "chatml":  # takes the beginning of a reply away later; what was read stays
        texts = [text.replace("<think>\n\n</think>\n\n", "") for text in texts]
    if name == "mistral":  # a model writes the space before its reply itself
        texts = [text.replace(f" {REPLY}", REPLY) for text in texts]
    assert texts[0] == texts[1]
    continued = [
        *response,
        *(token for part in chat.following(response, TEXT, 500) for token in part),
    ]
    assert later == [*before, *continued, *chat.turns.opening]


PIECES = sorted({piece for _, special, *_ in TEMPLATES.values() for piece in special})
HOSTILE = st.lists(
    st.one_of(st.sampled_from([*PIECES, "<|end|>", "<|user|>"]), st.text(max_size=3))
)


@settings(max_examples=150, deadline=None)
@given(HOSTILE, st.sampled_from(NAMES), st.booleans(), st.integers(1, 40))
def test_no_observation_writes_a_control_token(pieces, name, is_ended, longest):
    chat, text = turns(name), "".join(pieces)
    response = [5, chat.end] if is_ended else [5]
    following, plain = (
        chat.following(response, text, longest),
        chat.following(response, "x", longest),
    )
    control = set(chat._control.values()) - {made_tokenizer(name).unk_token_id}
    assert not control & set(following.observation)
    assert len(following.observation) <= longest
    if following.observation:
        assert (following.header, following.footer) == (plain.header, plain.footer)
    else:
        assert following == ((), (), ()) and not text.strip()


def test_a_template_that_does_not_show_the_talk_is_refused():
    lower = made_tokenizer("tiny").chat_template.replace("['content']", "['content']|lower")
    for template in ("{{ messages[0].content }}", "{{ messages[-1].content }}", lower):
        silent = copy.deepcopy(made_tokenizer("tiny"))
        silent.chat_template = template
        with pytest.raises(LanguageModelError, match="shows what assistant and user say"):
            Serializer(silent)


def make(**options):
    env_options = {"split": "train", "source": "generated", "topk": 1, **options}
    return gym.make("comap/SearchQA-v0", **env_options)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """An untrained model: what it writes is hardly ever what its text would be tokenised as."""
    from comap.lm.hf import HFLanguageModel

    return HFLanguageModel(model_folder(tmp_path_factory.mktemp("concat") / "model"), device="cpu")


@pytest.fixture(scope="module")
def rows(lm):
    task = make().unwrapped.tasks.ids[0]
    agent = create_agent("paw", **SIZES)
    played = roll_out(make, agent, [Group(0, task, 3)], Serializer(lm.tokenizer), lm=lm, seed=2)
    assert not played.dropped
    return played.rows


def test_each_prompt_is_the_row_before_it_and_what_follows(lm, rows):
    opening = ChatTokenizer(lm.tokenizer).turns.opening
    assert len(rows) == 12 and {row.t for row in rows} == {0, 1, 2, 3}
    for before, row in pairwise(rows):
        if row.t == 0:
            continue
        tail = (*before.header_ids, *before.observation_ids, *before.footer_ids, *opening)
        assert row.prompt_ids == (*before.prompt_ids, *before.response_ids, *tail)
        assert before.observation_ids and before.header_ids and before.footer_ids


@EACH_TEMPLATE
def test_the_mark_of_a_cut_observation_is_not_scored(name):
    response = [5, turns(name).end]
    whole = turns(name).following(response, TEXT + CUT, 500)
    unmarked = turns(name).following(response, TEXT + CUT, 500, CUT)
    assert made_tokenizer(name).decode(unmarked.observation) == TEXT
    assert unmarked.header == whole.header, "what is read stays the same"
    read = [(*following.observation, *following.footer) for following in (unmarked, whole)]
    assert read[0] == read[1]


def test_rows_of_cut_observations_score_the_environment_s_text_alone(lm):
    task = make().unwrapped.tasks.ids[0]
    agent = create_agent("paw", **{**SIZES, "observation_tokens": 24})
    options = {"lm": lm, "seed": 2}
    episode_rows = roll_out(
        make, agent, [Group(0, task, 2)], Serializer(lm.tokenizer), **options
    ).rows
    cut = [row for row in episode_rows if "[...]" in lm.tokenizer.decode(row.footer_ids)]
    assert len(cut) >= 2, "of this size some searches are cut"
    for row in episode_rows:
        assert "[...]" not in lm.tokenizer.decode(row.observation_ids)
        action, observation = row.parts(observed=True)
        assert len(observation) == len(row.observation_ids) and len(action) == len(row.response_ids)
    opening = ChatTokenizer(lm.tokenizer).turns.opening
    for before, row in pairwise(episode_rows):
        tail = (*before.header_ids, *before.observation_ids, *before.footer_ids, *opening)
        assert row.t == 0 or row.prompt_ids == (*before.prompt_ids, *before.response_ids, *tail)


def test_prompts_are_those_of_generation(lm):
    task = make().unwrapped.tasks.ids[1]
    options = {"lm": lm, "seed": 3, "concurrency": 2}
    with watched_generation() as generations:
        agent, serializer = create_agent("paw", **SIZES), Serializer(lm.tokenizer)
        episode_rows = roll_out(make, agent, [Group(0, task, 2)], serializer, **options).rows
    assert {(row.prompt_ids, row.response_ids) for row in episode_rows} == set(generations) and len(
        episode_rows
    ) == 8


def test_requests_in_other_tokens_are_other_requests(lm):
    talk = (Message("user", "?"), Message("assistant", "look"), Message("user", "It"))
    (look,) = ChatTokenizer(lm.tokenizer).tokens(["look"])
    letters = tuple(token for letter in "look" for token in lm.tokenizer.encode(letter))
    requests = [Generate(talk, reply_ids=ids) for ids in ((tuple(look),), (letters,), ())]
    assert len({request_key(request) for request in requests}) == 3
    first, second, third = lm.generate(requests)
    assert first.prompt_tokens == third.prompt_tokens == second.prompt_tokens - 4 + len(look)
    assert "reply_ids" not in request_to_json(requests[2])  # as in records from before


@pytest.mark.parametrize("roles", ["user assistant", "user", "user assistant assistant user"])
def test_a_conversation_takes_turns(roles):
    chat = ChatTokenizer(tokenizer_of(["It is dark."] * 2, 320))
    talk = tuple(Message(role, "It") for role in roles.split())
    (reply,) = chat.prompts([Generate(talk, reply_ids=((5,),))])
    assert isinstance(reply, LanguageModelError) and "expected 1 replies" in str(reply)


def test_what_is_taught_goes_on_in_the_same_tokens():
    tokenizer = tokenizer_of(["It is dark. look"] * 2, 320)
    chat = ChatTokenizer(tokenizer)
    talk = (Message("user", "?"), Message("assistant", "look"), Message("user", "It"))
    ids = (*chat.tokens(["lo"])[0], *chat.tokens(["ok"])[0], chat.end)
    row, plain = encode_rows(tokenizer, [Row(talk, "dark", (ids,)), Row(talk, "dark")])
    assert row.answer == plain.answer and tuple(ids) != tuple(chat.tokens(["look"])[0])
    assert any(row.prompt[n : n + len(ids)] == ids for n in range(len(row.prompt)))
    assert tokenizer.decode(list(row.prompt)) == tokenizer.decode(list(plain.prompt))
