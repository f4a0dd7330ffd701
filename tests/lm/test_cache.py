"""What is known of earlier prompts is not read again, and answers are as without."""

from __future__ import annotations

import gc
import random
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from comap.errors import LanguageModelError  # noqa: E402
from comap.lm import Encode, Generate, HFLanguageModel, Message, NextWord, Sampling, Score  # noqa: E402
from comap.lm.engine.cache import PrefixTree, cache_class  # noqa: E402
from comap.lm.engine.ngrams import NGrams  # noqa: E402

TEXTS = ("go to shelf 2", "take apple 1", "You see a cabinet 1", "open it", "nothing")


def opened(folder, **options):
    return HFLanguageModel(folder, device="cpu", **options)


def play(lm, episodes=4, turns=4):
    """Growing conversations with branches: drafts of several seeds, scores, words and states."""
    draw, record = random.Random(3), []
    talks = [(Message("user", f"task {i}: {draw.choice(TEXTS)}"),) for i in range(episodes)]
    for turn in range(turns):
        requests = [
            Generate(talk, Sampling(draw.choice([2, 5, 9]), draw.choice([0.0, 1.0]), seed=seed))
            for talk in talks
            for seed in range(2)
        ]
        replies = lm.generate(requests)
        record += [
            (
                answer.text,
                answer.token_ids,
                [round(x, 9) for x in answer.logprobs],
                answer.prompt_tokens,
            )
            for answer in replies
        ]
        scores = lm.score([Score(talk, TEXTS[:3]) for talk in talks])
        record += [[round(x, 9) for tokens in answer.logprobs for x in tokens] for answer in scores]
        words = lm.words([NextWord(talk, (" go", " take")) for talk in talks[::2]])
        record += [[round(x, 9) for x in answer.probabilities] for answer in words]
        record += [
            [round(x, 5) for x in answer.vector] for answer in lm.encode([Encode(talks[turn])])
        ]
        for i, reply in enumerate(replies[::2]):
            user_message = Message("user", f"{draw.choice(TEXTS)} {turn}")
            talks[i] = (*talks[i], Message("assistant", reply.text or "..."), user_message)
    return record


@pytest.fixture(scope="module")
def expected(folder):
    """What is answered without a memory, token by token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NGrams, "after", lambda *_: [])
        return play(opened(folder, cache_mb=0))


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_answers_are_the_same_with_any_memory_of_earlier_prompts(folder, rows, expected):
    assert play(opened(folder, batch_rows=rows)) == expected
    assert play(opened(folder, batch_rows=rows, cache_mb=1)) == expected, "some of it was dropped"


def test_the_memory_of_a_batch_is_freed_when_it_is_answered(folder, monkeypatch):
    lm, batches = opened(folder), weakref.WeakSet()
    cache = cache_class()
    created = cache.__init__

    def noting(self, *args):
        batches.add(self)
        created(self, *args)

    monkeypatch.setattr(cache, "__init__", noting)
    gc.disable()  # which frees circles of references, but seldom: gigabytes wait for it
    try:
        lm.generate([Generate((Message("user", text),), Sampling(3)) for text in TEXTS])
        lm.words([NextWord((Message("user", "go to shelf 2"),), (" go", " take"))])
        assert not batches
    finally:
        gc.enable()


def test_only_what_is_new_is_read(folder, monkeypatch):
    lm, read = opened(folder), []
    forward = type(lm.model).forward

    def counting(self, *args, **options):
        read.append(options["input_ids"].shape[1])
        return forward(self, *args, **options)

    monkeypatch.setattr(type(lm.model), "forward", counting)
    talk = (Message("user", "go to shelf 2 " * 12),)
    (reply,) = lm.generate([Generate(talk, Sampling(6))])
    first, read[:] = read[0], []
    longer_talk = (*talk, Message("assistant", reply.text), Message("user", "You see nothing"))
    lm.generate([Generate(longer_talk, Sampling(6))])
    assert first > 40 and read[0] < 25
    read[:] = []
    lm.generate([Generate(talk, Sampling(6, temperature=1.0, seed=4))])  # a branch: rewound
    assert read[0] <= 6, "what may be guessed of the answer is read together with the prompt"


def test_prompts_of_any_lengths_are_read_without_padding(folder, monkeypatch):
    """On a CPU; keys and values here are shared by two heads each."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    tokenizer = opened(folder).tokenizer
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes)).double()
    lm, alone = (
        HFLanguageModel.from_model(model, tokenizer, batch_rows=rows, cache_mb=mb)
        for rows, mb in ((64, 100), (1, 0))
    )
    read, forward = [], model.forward

    def counting(*args, **options):
        read.append(tuple(options["input_ids"].shape))
        return forward(*args, **options)

    monkeypatch.setattr(model, "forward", counting)
    talks = [(Message("user", text * (n + 1)),) for n, text in enumerate(TEXTS)]
    for _ in range(2):
        requests = [Generate(talk, Sampling(4, temperature=1.0, seed=5)) for talk in talks]
        replies, new = lm.generate(requests), read[0]
        assert new[0] == 1 and new[1] <= sum(reply.prompt_tokens for reply in replies)
        for reply, lone_reply in zip(replies, alone.generate(requests), strict=True):
            assert reply.token_ids == lone_reply.token_ids
            assert reply.logprobs == pytest.approx(lone_reply.logprobs, abs=1e-9)
        talks = [
            (*talk, Message("assistant", reply.text or "..."), Message("user", "open it"))
            for talk, reply in zip(talks, replies, strict=True)
        ]
        read[:] = []


def test_a_damaged_answer_damages_no_later_one(folder):
    """What is not a number stays out of the memory that the next call uses."""
    lm = opened(folder)
    talks = [(Message("user", "go to shelf 2 " * n),) for n in (1, 9, 3, 6)]
    requests = [Generate(talk, Sampling(5)) for talk in talks]
    expected = [reply.token_ids for reply in opened(folder).generate(requests)]
    handle = lm.model.model.layers[0].register_forward_hook(lambda *_: _[2] * float("nan"))
    assert all(isinstance(reply, LanguageModelError) for reply in lm.generate(requests[:2]))
    handle.remove()
    lm._trees.clear()  # damaged as they are: the weights' mark has not changed
    assert [reply.token_ids for reply in lm.generate(requests)] == expected


def test_new_weights_forget_what_the_old_ones_computed(folder):
    lm = opened(folder)
    request = Generate((Message("user", "go to shelf 2"),), Sampling(8))
    before = lm.generate([request])[0]
    with torch.no_grad():
        for weight in lm.model.parameters():
            weight.mul_(-1)
    after = lm.generate([request])[0]
    fresh = HFLanguageModel.from_model(lm.model, lm.tokenizer, cache_mb=0).generate([request])[0]
    assert after.logprobs == pytest.approx(fresh.logprobs) != pytest.approx(before.logprobs)


def test_each_adapter_has_its_own_memory(folder):
    peft = pytest.importorskip("peft")
    lm = opened(folder)
    lm.add_adapter("other", peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, weight in lm.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(0))
    talk = (Message("user", "go to shelf 2 and take apple 1"),)
    alone = {}
    for adapter in (None, "other"):
        fresh = HFLanguageModel.from_model(lm.model, lm.tokenizer, cache_mb=0)
        alone[adapter] = fresh.generate([Generate(talk, Sampling(8), adapter=adapter)])[0]
    assert alone[None].logprobs != pytest.approx(alone["other"].logprobs)
    for adapter in (None, "other", None):
        reply = lm.generate([Generate(talk, Sampling(8), adapter=adapter)])[0]
        assert reply.logprobs == pytest.approx(alone[adapter].logprobs)


def test_a_tree_keeps_to_its_limit_and_drops_what_was_used_least_recently():
    def states(start, end):
        return [torch.arange(start, end).double()[None, None, :, None]] * 2

    tree = PrefixTree(limit=100 * 16)
    for first in range(20):
        tree.add([first, *range(1, 10)], states)
        tree.find([0, 1, 2, 3])  # the first is used again and again
        tree.shrink()
        assert tree.size <= tree.limit
    assert sum(count for _, count in tree.find([0, *range(1, 10)])) == 10
    assert tree.find([1, *range(1, 10)]) == []


def test_a_tree_holds_the_states_of_each_token_once_however_texts_branch():
    draw = random.Random(0)
    tree, texts = PrefixTree(limit=10**9), []

    def states(start, end):
        return [torch.arange(start, end).double()[None, None, :, None]] * 2

    for _ in range(200):
        stem = draw.choice(texts)[: draw.randrange(12)] if texts else []
        texts.append(stem + [draw.randrange(3) for _ in range(draw.randrange(1, 8))])
        tree.add(texts[-1], states)
    for text in texts:
        path = tree.find(text)
        assert [token for node, count in path for token in node.tokens[:count]] == text
        path_states = torch.cat([node.states[0][0, 0, :count, 0] for node, count in path])
        assert path_states.tolist() == list(range(len(text)))
    different = {tuple(text[:n]) for text in texts for n in range(1, len(text) + 1)}
    assert tree.size == 16 * len(different)
