"""Samples in tokens, for chat templates of several kinds; and in which order and batches they pass."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.errors import LanguageModelError, OptionError
from comap.lm import Generate, Message, Sampling
from comap.lm.hf import HFLanguageModel
from comap.lm.tiny import Row, encode_rows
from comap.trainers.config import Optimization
from comap.trainers.samples import (
    Sample,
    Update,
    count_samples,
    dealt,
    encode_samples,
    plan_updates,
)
from kits.handwritten_templates import MISTRAL, TEMPLATES, template_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EACH = pytest.mark.parametrize("name", sorted(TEMPLATES))
TALK = (
    Message("system", "Act well."),
    Message("user", "You see a shelf 1."),
    Message("assistant", "Action: go to shelf 1"),
    Message("user", "It is <|im_end|> dark."),
)
REPLY = (("Thought: dark.\nAction:", False), (" go to shelf 2", True), ("\n", False), ("!", True))


def sample(**fields):
    return Sample(**{"kind": "warmup", "messages": TALK, "reply": REPLY, **fields})


def labelled(row):
    return [token for token, flag in zip(row.answer, row.scored, strict=True) if flag]


@EACH
def test_exactly_the_scored_segments_and_the_end_carry_loss(name):
    tokenizer, end = template_tokenizer(name), TEMPLATES[name][2]
    (row,) = encode_samples(tokenizer, [sample()])
    assert tokenizer.decode(labelled(row)) == " go to shelf 2!" + end
    assert tokenizer.decode(row.answer) == sample().text + end
    (open_end,) = encode_samples(tokenizer, [sample(reply=((" go", True), (" to", False)))])
    assert tokenizer.decode(labelled(open_end)) == " go", "a masked last segment masks the end"
    masked = [t for t, flag in zip(row.answer, row.scored, strict=True) if not flag]
    assert tokenizer.decode(masked) == "Thought: dark.\nAction:\n"
    assert len(row.scored) == len(row.answer) and len(row) == len(row.prompt) + len(row.answer)


@EACH
def test_the_prompt_ends_where_the_assistant_begins(name):
    tokenizer, begins = template_tokenizer(name), TEMPLATES[name][3]
    (row,) = encode_samples(tokenizer, [sample()])
    prompt = tokenizer.decode(row.prompt)
    assert prompt.endswith(begins)
    assert "Act well." in prompt and "dark.\nAction:" not in prompt
    assert prompt.count("go to shelf 1") == 1


@EACH
def test_generation_continues_from_the_very_prompt_of_training(name):
    tokenizer = template_tokenizer(name)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = transformers.Qwen3ForCausalLM(config).double().eval()
    read = []

    def keep(_, __, inputs):
        read.extend(inputs["input_ids"].reshape(-1).tolist())

    model.model.register_forward_pre_hook(keep, with_kwargs=True)
    lm = HFLanguageModel.from_model(model, tokenizer)
    (reply,) = lm.generate([Generate(TALK, Sampling(1))])
    (row,) = encode_samples(tokenizer, [sample()])
    assert tuple(read) == row.prompt and getattr(reply, "prompt_tokens", 0) == len(row.prompt)
    assert row.answer[-1] in lm._chat.ends, "what is learned as the end ends a generation"


@EACH
def test_plain_fine_tuning_has_the_same_tokens(name):
    reply_sample = sample(reply=((" go to shelf 2", True),))
    (row,) = encode_samples(template_tokenizer(name), [reply_sample])
    (plain_row,) = encode_rows(template_tokenizer(name), [Row(TALK, " go to shelf 2")])
    assert (row.prompt, row.answer) == (plain_row.prompt, plain_row.answer)
    assert all(row.scored)


TEXTS = st.text("ab 1\né漢<|>[/INST]endimst_", min_size=0, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=4),
    st.sampled_from(["chatml", "mistral"]),
)
def test_any_reply_is_labelled_by_segments(reply, name):
    tokenizer = template_tokenizer(name)
    (row,) = encode_samples(tokenizer, [sample(reply=tuple(reply))], 1000)
    alone = [encode_samples(tokenizer, [sample(reply=(part,))], 1000)[0] for part in reply]
    tokens = [token for part in alone for token in part.answer[:-1]]
    flags = [flag for part in alone for flag in part.scored[:-1]]
    assert row.answer == (*tokens, alone[-1].answer[-1])
    assert row.scored == (*flags, reply[-1][1])
    control = set(tokenizer.all_special_ids)
    assert not control & set(row.answer[:-1]), "no text of a reply is a control token"


# -- decisions, teachers, room ---------------------------------------------------------------------

DECIDED = (("Decision:", False), (" REVISE", True), ("\nFinal Action:", False), (" go", True))


@EACH
@pytest.mark.parametrize("word", [" REVISE", " KEEP"])
def test_the_label_is_read_where_the_words_first_differ(name, word):
    reply = (DECIDED[0], (word, True), *DECIDED[2:])
    (row,) = encode_samples(template_tokenizer(name), [sample(reply=reply, label=1.0)])
    place, revise, keep = row.decision
    assert row.answer[place] == (revise if word == " REVISE" else keep) and revise != keep
    before = template_tokenizer(name).decode(row.answer[:place])
    assert before.startswith("Decision:") and "Final" not in before


def test_without_a_label_or_a_decision_there_is_no_place_for_it():
    plain, labeled = encode_samples(
        template_tokenizer("tiny"), [sample(reply=DECIDED), sample(label=1.0)]
    )
    assert plain.decision is None and labeled.decision is None and labeled.label == 1.0


def test_a_reply_without_room_is_cut_and_does_not_end():
    (whole,) = encode_samples(template_tokenizer("tiny"), [sample(reply=DECIDED, label=0.0)])
    size = len(whole.prompt) + whole.decision[0]
    (cut,) = encode_samples(template_tokenizer("tiny"), [sample(reply=DECIDED, label=0.0)], size)
    assert cut.answer == whole.answer[: whole.decision[0]] and len(cut) == size
    assert cut.decision is None and cut.scored == whole.scored[: whole.decision[0]]


def test_the_teacher_s_prompt_takes_room_too_and_is_never_an_answer():
    longer = (*TALK[:-1], Message("user", "It is dark. You see a shelf 2 " * 5))
    short, wide = encode_samples(template_tokenizer("tiny"), [sample(), sample(messages=longer)])
    (row,) = encode_samples(
        template_tokenizer("tiny"), [sample(teacher=longer)], len(wide.prompt) + 3
    )
    assert row.teacher == wide.prompt and row.prompt == short.prompt
    assert row.answer == short.answer[:3]


def test_what_cannot_be_encoded_says_why():
    (row,) = encode_samples(template_tokenizer("tiny"), [sample()])
    with pytest.raises(OptionError, match=r"prompts of less than \d+ tokens.*raise max_length"):
        encode_samples(template_tokenizer("tiny"), [sample(task="t1")], len(row.prompt))
    strict = copy.deepcopy(template_tokenizer("mistral"))
    strict.chat_template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}"
    strict.chat_template += "{% endif %}" + MISTRAL
    talk = (Message("assistant", "Hello."), Message("user", "Go on."))
    with pytest.raises(LanguageModelError, match="takes messages of assistant, user"):
        encode_samples(strict, [sample(messages=talk)])
    assert encode_samples(template_tokenizer("tiny"), []) == []


# -- order and batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [{"batch_rows": 3}, {"batch_rows": None, "batch_tokens": 40}])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_each_row_passes_once_an_epoch(batch, accumulate):
    rng = random.Random(0)
    lengths = [[rng.randint(1, 30) for _ in range(17)] for _ in range(2)]
    optimization = Optimization(accumulate=accumulate, **batch)
    plan = plan_updates(lengths, optimization, seed=5)
    assert plan == plan_updates(lengths, optimization, seed=5)
    assert plan != plan_updates(lengths, optimization, seed=6)
    for epoch in (0, 1):
        updates = [update for update in plan if update.epoch == epoch]
        assert sorted(row for update in updates for row in update.rows) == list(range(17))
        if "batch_tokens" in batch:
            sizes = [len(update.batches) for update in updates]
        else:
            sizes = [-(-len(update.rows) // 3) for update in updates]
        assert sizes[:-1] == [accumulate] * (len(sizes) - 1), "only the last update may be smaller"
    for update in plan:
        for rows in update.batches:
            longest = max(lengths[update.epoch][row] for row in rows)
            if "batch_tokens" in batch:
                assert len(rows) == 1 or longest * len(rows) <= 40
            else:
                assert len(rows) <= 3 * accumulate


LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 100), st.integers(1, 4))
def test_an_update_is_cut_by_tokens(lengths, max_tokens, processes):
    update = Update(3, (tuple(range(len(lengths))),))
    shares = dealt(update, dict(enumerate(lengths)), max_tokens, processes)
    assert len(shares) == processes
    assert len({len(batches) for batches in shares}) == 1, "processes exchange gradients"
    assert sorted(
        row for batches in shares for micro_batch in batches for row in micro_batch.rows
    ) == [*range(len(lengths))]
    for batches in shares:
        assert all(batch.epoch == 3 for batch in batches)
        for batch in batches:
            widths = [lengths[row] for row in batch.rows]
            assert len(widths) <= 1 or max(widths) * len(widths) <= max_tokens
        widest = [max((lengths[row] for row in batch.rows), default=0) for batch in batches]
        assert widest == sorted(widest, reverse=True), "what needs most memory is first"
    if processes == 1:
        assert all(batch.rows for batch in shares[0]), "no pass is empty"
    assert any(shares[rank][-1].rows for rank in range(processes)), "no more empty ones than needed"


def test_an_update_of_planned_micro_batches_is_not_cut_again():
    update = Update(0, ((3, 1), (0,), (2,)))
    (alone,) = dealt(update, {}, None)
    assert [batch.rows for batch in alone] == [(3, 1), (0,), (2,)]
    shares = dealt(update, {}, None, 2)
    assert [[batch.rows for batch in batches] for batches in shares] == [[(3, 1), (2,)], [(0,), ()]]


def test_samples():
    sample = Sample(kind="anchor", messages=TALK, reply=(("a", False), (" b", True)), weight=2.0)
    assert (sample.text, sample.scored, sample.scaled(0.5).weight) == ("a b", " b", 1.0)
    assert count_samples([sample, sample]) == {"anchor": 2}
