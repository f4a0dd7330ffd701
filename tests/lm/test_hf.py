"""The Hugging Face backend: what it generates, scores and encodes, on a tiny model."""

from __future__ import annotations

import math
import random

import pytest

from comap.errors import LanguageModelError
from comap.lm import (
    Completion,
    Encode,
    Generate,
    Message,
    NextWord,
    Sampling,
    Score,
)
from comap.lm.engine import passes
from comap.lm.hf import HFLanguageModel

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

PLACES = "You see a cabinet 1, a shelf 2 and a fridge; go to take open close apple from"
WORDS = PLACES.split()


@pytest.fixture(scope="module")
def lm(folder):
    return HFLanguageModel(folder, device="cpu")


def talk(text):
    return (Message("user", text),)


def mixed(count=24):
    """Requests of many lengths: greedy, sampled, with top-p, with stop texts and with choices."""
    draw = random.Random(1)
    requests = []
    for i in range(count):
        sampling = Sampling(
            max_new_tokens=draw.choice([1, 3, 8, 14]),
            temperature=draw.choice([0.0, 0.7, 2.0]),
            top_p=draw.choice([1.0, 0.8]),
            stop=draw.choice([(), ("a",), ("shelf", "\n")]),
            seed=i,
        )
        text = " ".join(draw.choices(WORDS, k=draw.randrange(40)))
        choices = draw.choice([None, None, ("go to shelf 2", "go to shelf", "take apple 1", "")])
        requests.append(Generate(talk(text), sampling, prefix=text[:7], choices=choices))
    return requests


def rounded(reply):
    assert isinstance(reply, Completion), reply
    assert len(reply.logprobs) == len(reply.token_ids) == reply.completion_tokens
    logprobs = tuple(round(value, 9) for value in reply.logprobs)
    return reply.text, reply.token_ids, logprobs, reply.finish, reply.prompt_tokens


def plain(lm, request, tokens):
    """The log-probabilities of some tokens after a request's prompt, by a forward pass of their own."""
    (prompt,) = lm._chat.prompts([request])
    with torch.inference_mode():
        logits = lm.model(input_ids=torch.tensor([prompt + tokens])).logits[0]
    table = logits.log_softmax(-1)
    return [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)]


def test_an_answer_depends_neither_on_its_batch_nor_on_the_order(folder):
    lm, small = (HFLanguageModel(folder, device="cpu", batch_rows=rows) for rows in (64, 5))
    requests = mixed()
    together = [rounded(reply) for reply in lm.generate(requests)]
    assert len({reply[0] for reply in together}) > 10
    assert together == [rounded(reply) for request in requests for reply in lm.generate([request])]
    assert together == [rounded(reply) for reply in small.generate(requests)]
    assert together == [rounded(reply) for reply in lm.generate(requests[::-1])][::-1]


@pytest.mark.parametrize("shared", [40, 64, 90])
def test_a_common_beginning_is_read_once_and_changes_nothing(folder, monkeypatch, shared):
    """Also where a prompt is the beginning of another, and where prompts are of one length."""
    lm = HFLanguageModel(folder, device="cpu", cache_mb=0)
    beginning = "go " * shared
    tails = ["", "to", "to cabinet", "to shelf 2 and", "take", "take"]
    sampling = Sampling(max_new_tokens=6)
    requests = [Generate(talk(beginning + tail), sampling) for tail in tails]
    requests += [Generate(talk(beginning + tail), sampling, choices=("a", "to")) for tail in tails]
    alone = [rounded(lm.generate([request])[0]) for request in requests]
    widths = []
    forward = type(lm.model).forward

    def counting(self, *args, **options):
        widths.append(options["input_ids"].numel())
        return forward(self, *args, **options)

    monkeypatch.setattr(type(lm.model), "forward", counting)
    assert [rounded(reply) for reply in lm.generate(requests)] == alone
    whole = len(set(tails)) * min(reply[4] for reply in alone)
    assert (widths[0] < whole) == (shared >= 64), "the common part was read for every prompt"


def test_generation_is_that_of_the_library(lm):
    requests = [Generate(talk(text), Sampling(12)) for text in ("go", "You see a cabinet 1", "")]
    for request, reply in zip(requests, lm.generate(requests), strict=True):
        text = lm.tokenizer.apply_chat_template(
            [message._asdict() for message in request.messages],
            add_generation_prompt=True,
            tokenize=False,
        )
        prompt = lm.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        generated = lm.model.generate(
            input_ids=prompt["input_ids"],
            attention_mask=prompt["attention_mask"],
            max_new_tokens=12,
            do_sample=False,
        )
        assert reply.token_ids == tuple(generated[0, reply.prompt_tokens :].tolist())


def test_logprobs_are_those_of_the_model_whatever_the_sampling(lm):
    for request in mixed(8):
        (reply,) = lm.generate([request])
        expected = plain(lm, request, list(reply.token_ids))
        assert reply.logprobs == pytest.approx(expected, abs=1e-9)


def test_seeds_matter_and_large_ones_are_told_apart(lm):
    hot = [Sampling(10, temperature=1.5, seed=seed) for seed in (0, 1, -1, 2**32, 2**63 + 5)]
    texts = [rounded(reply)[1] for reply in lm.generate([Generate(talk("go"), s) for s in hot])]
    assert len(set(texts)) == len(hot)


def test_samples_follow_the_model(lm):
    """The number of times a token is sampled is its probability, with temperature and top-p."""
    count, temperature, top_p = 1000, 0.9, 0.7
    sampling = [Sampling(1, temperature=temperature, top_p=top_p, seed=i) for i in range(count)]
    replies = lm.generate([Generate(talk("go to"), settings) for settings in sampling])
    prompt = lm._chat.prompts([Generate(talk("go to"))])[0]
    with torch.inference_mode():
        logits = lm.model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    expected, order = (logits / temperature).softmax(-1).sort(descending=True)
    kept_count = int((expected.cumsum(-1) < top_p).sum()) + 1
    expected = expected[:kept_count] / expected[:kept_count].sum()
    samples = [
        reply.token_ids[0] for reply in replies if isinstance(reply, Completion) and reply.token_ids
    ]
    assert set(samples) <= set(order[:kept_count].tolist())
    for token, probability in zip(order[:kept_count].tolist(), expected.tolist(), strict=True):
        error = 5 * (probability * (1 - probability) / count) ** 0.5
        assert abs(samples.count(token) / count - probability) < error + 1e-9


def test_text_ends_before_a_stop_text(lm):
    whole = lm.generate([Generate(talk("You see"), Sampling(30, temperature=2, seed=7))])[0]
    assert isinstance(whole, Completion) and len(whole.text) > 12
    stop = whole.text[5:8]
    sampling = Sampling(30, temperature=2, seed=7, stop=("never said", stop))
    cut = lm.generate([Generate(talk("You see"), sampling)])[0]
    assert cut.text == whole.text[: whole.text.find(stop)] and cut.finish == "stop"
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert stop in lm.tokenizer.decode(cut.token_ids, skip_special_tokens=True)


CHOICES = ("go to shelf 1", "go to shelf", "go to shelf 12", "take", "", "go to shelf", "Ünicode ✓")


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_the_text_is_exactly_one_of_the_choices(lm, temperature):
    requests = [
        Generate(
            talk("go " * i), Sampling(1, temperature, seed=i, stop=("shelf",)), choices=CHOICES
        )
        for i in range(40)
    ]
    for reply in lm.generate(requests):
        assert reply.text in CHOICES and reply.finish == "stop"
        assert reply.token_ids == (*lm._chat.tokens([reply.text])[0], lm._chat.end)


def test_choices_are_drawn_by_their_probability_token_by_token(lm):
    choices, count = ("take", "open", "take apple"), 600
    requests = [
        Generate(talk("x"), Sampling(9, 1.0, seed=i), choices=choices) for i in range(count)
    ]
    texts = [reply.text for reply in lm.generate(requests) if isinstance(reply, Completion)]
    first = lm._chat.tokens(["take", "open"])
    prompt = lm._chat.prompts([requests[0]])[0]
    with torch.inference_mode():
        logits = lm.model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    take, opened = logits[[first[0][0], first[1][0]]].softmax(-1).tolist()
    assert first[0][0] != first[1][0]
    error = 5 * (take * opened / count) ** 0.5
    assert abs(texts.count("open") / count - opened) < error


def test_the_context_bounds_prompt_and_answer(lm):
    fits, full = talk("go " * 120), talk("go " * 300)
    choices = Generate(talk("go " * 245), choices=("take apple from shelf 1 " * 2,))
    long, over, choice_reply = lm.generate(
        [Generate(fits, Sampling(5000)), Generate(full, Sampling(7)), choices]
    )
    assert isinstance(long, Completion) and long.finish == "length"
    assert long.prompt_tokens + long.completion_tokens == 256
    assert isinstance(over, LanguageModelError)
    assert "256" in str(over) and "305" in str(over) and "7 follow" in str(over)
    assert isinstance(choice_reply, LanguageModelError)
    (score,) = lm.score([Score(full, ("take",))])
    assert isinstance(score, LanguageModelError)


def test_equal_requests_are_computed_once(lm, monkeypatch):
    rows = []
    plain = lm.model.forward

    def forward(*args, **kwargs):
        rows.append(len(kwargs["input_ids"]))
        return plain(*args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", forward)
    request = Generate(talk("go"), Sampling(4), purpose="one")
    same_prompt = Generate(talk("go"), Sampling(4, seed=9), purpose="other")
    replies = lm.generate([request, same_prompt, request])
    assert max(rows) == 1 and len({rounded(reply) for reply in replies}) == 1
    rows.clear()  # samples of one prompt differ, but read it once
    lm.generate([Generate(talk("go"), Sampling(4, 1.0, seed=i)) for i in range(6)])
    assert rows[0] == 1 and max(rows) > 1


def test_a_batch_too_large_for_the_memory_is_halved(folder, monkeypatch):
    lm = HFLanguageModel(folder, device="cpu")
    requests = mixed(12)
    expected = [rounded(reply) for reply in lm.generate(requests)]
    plain = lm.model.forward

    def forward(*args, **kwargs):
        if len(kwargs["input_ids"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(*args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", forward)
    with pytest.warns(ResourceWarning, match="halved"):
        replies = lm.generate(requests)
    assert [rounded(reply) for reply in replies] == expected

    def never(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(lm.model, "forward", never)
    for reply in lm.generate(requests[:3]):
        assert isinstance(reply, LanguageModelError) and "memory" in str(reply)


def test_a_wrong_request_does_not_cost_the_others(lm):
    good = Generate(talk("go"), Sampling(3))
    wrong = [
        Generate(()),
        Generate((Message("tool", "x"),)),
        Generate(talk("x"), choices=()),
        Generate(talk("x"), adapter="nobody"),
        Generate((Message("user", None),)),
        Generate(talk("x"), prefix=b"x"),
    ]
    replies = lm.generate([good, *wrong, good])
    assert rounded(replies[0]) == rounded(replies[-1])
    assert all(isinstance(reply, LanguageModelError) for reply in replies[1:-1])


def test_weights_that_are_not_numbers_are_an_error(folder):
    lm = HFLanguageModel(folder, device="cpu")
    lm.model.get_input_embeddings().weight.data.fill_(float("nan"))
    (reply,) = lm.generate([Generate(talk("go"), Sampling(3))])
    assert isinstance(reply, LanguageModelError) and "not a number" in str(reply)


def test_a_model_in_training_is_in_training_afterwards(folder):
    loaded = HFLanguageModel(folder, device="cpu")
    model = loaded.model.train()
    model.model.norm.eval()
    lm = HFLanguageModel.from_model(model, loaded.tokenizer, name="policy")
    before = {name: module.training for name, module in model.named_modules()}
    assert [rounded(reply) for reply in lm.generate(mixed(3))] == [
        rounded(reply) for reply in loaded.generate(mixed(3))
    ]
    assert before == {name: module.training for name, module in model.named_modules()}
    loss = model(input_ids=torch.tensor([[5, 6, 7]])).logits.sum()
    loss.backward()  # nothing of an answer stays behind in the model
    assert lm.config()["name"] == "policy"


def test_weights_of_a_model_under_autocast_are_cast_once_in_a_call(folder):
    """A training in bfloat16 samples so: accelerate has wrapped the forward of its policy."""
    operations = pytest.importorskip("accelerate.utils.operations")
    from torch.utils._python_dispatch import TorchDispatchMode

    loaded = HFLanguageModel(folder, device="cpu", dtype="float32")
    weights = {weight.data_ptr() for weight in loaded.model.parameters()}
    casts = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            casting = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
            if function in casting and arguments[0].data_ptr() in weights:
                casts.append(arguments[0].data_ptr())
            return function(*arguments, **(options or {}))

    # As `Accelerator.prepare_model` does it, whose settings hold for the whole process.
    loaded.model._original_forward = loaded.model.forward
    half = torch.autocast("cpu", torch.bfloat16)(loaded.model.forward)
    loaded.model.forward = operations.convert_outputs_to_fp32(half)
    lm = HFLanguageModel.from_model(loaded.model, loaded.tokenizer)
    with Watch():
        (reply,) = lm.generate([Generate(talk("go"), Sampling(8))])

    # Most tokens cost a pass of their own; each pass used to cast all weights.
    assert len(reply.token_ids) == 8
    assert len(casts) == len(set(casts)) > 10


# Scores, words, hidden states.

COMPLETIONS = (
    "go to shelf 1",
    "go to shelf 12",
    "go to shelf",
    "take apple",
    "",
    "o",
    "go to shelf 1",
    "something else entirely, with Ünicode",
)


REQUESTS = [
    Score(talk(text), completions, prefix, is_ended)
    for text, completions, prefix, is_ended in (
        ("You see a cabinet 1.", COMPLETIONS, "", True),
        ("Hello", COMPLETIONS, "Action: ", False),
        ("a " * 60, ("take",), "", True),
        ("b", ("",), "", True),
        ("b", ("",), "", False),
        ("c", ("o", "apple"), "", False),
    )
]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-9), ("float32", 1e-5)])
def test_scores_are_those_of_separate_passes(folder, attention, dtype, error):
    lm = HFLanguageModel(folder, device="cpu", dtype=dtype)
    lm.model.set_attn_implementation(attention)
    if attention == "eager":  # it looks at double precision in single
        error = 1e-5
    for request, reply in zip(REQUESTS, lm.score(REQUESTS), strict=True):
        for text, logprobs in zip(request.completions, reply.logprobs, strict=True):
            tokens = lm._chat.tokens([text])[0] + [lm._chat.end] * request.ended
            assert logprobs == pytest.approx(plain(lm, request, tokens), abs=error)


def test_all_completions_are_one_forward_pass(lm, monkeypatch):
    sizes = []
    forward = lm.model.forward

    def counted(*args, **kwargs):
        sizes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", counted)
    lm.score(REQUESTS[:2])
    assert len(sizes) == 1 and sizes[0][0] == 2


@pytest.mark.parametrize("limit", [3, 40])
def test_large_trees_are_split_and_score_the_same(folder, limit, monkeypatch):
    lm = HFLanguageModel(folder, device="cpu", batch_tokens=limit)
    whole = HFLanguageModel(folder, device="cpu").score(REQUESTS)
    for scores, expected in zip(lm.score(REQUESTS), whole, strict=True):
        assert scores.totals == pytest.approx(expected.totals, abs=1e-9)
    monkeypatch.setattr(passes, "_LOGITS", 2000)
    monkeypatch.setattr(passes, "_SLICE", 100)
    for scores, expected in zip(lm.score(REQUESTS), whole, strict=True):
        assert scores.totals == pytest.approx(expected.totals, abs=1e-9)


def test_words_that_begin_alike_are_followed_to_where_they_part(lm):
    ask = NextWord(talk("x"), ("zab", "zac", "zacd", "q"), prefix=">")
    tokens = lm._chat.tokens(ask.words)
    assert tokens[0][:2] == tokens[1][:2] == tokens[2][:2] and len(tokens[1]) == 3
    (reply,) = lm.words([ask])
    zab, zac, zacd, q = (math.exp(math.fsum(plain(lm, ask, word_tokens))) for word_tokens in tokens)
    assert reply.probabilities == pytest.approx((zab, zac - zacd, zacd, reply.probabilities[3]))
    assert reply.probabilities[3] == pytest.approx(math.exp(plain(lm, ask, tokens[3][:1])[0]))
    assert q <= reply.probabilities[3]


def test_the_vector_is_the_last_hidden_state(lm):
    requests = [Encode(talk("go " * n), prefix="so" * (n % 3)) for n in (1, 30, 4)]
    replies = lm.encode(requests)
    for request, reply in zip(requests, replies, strict=True):
        (prompt,) = lm._chat.prompts([request])
        with torch.inference_mode():
            output = lm.model(input_ids=torch.tensor([prompt]), output_hidden_states=True)
        expected = output.hidden_states[-1][0, -1].tolist()
        assert reply.vector == pytest.approx(expected, rel=1e-6)
        assert reply.prompt_tokens == len(prompt)
        assert reply.vector == tuple(torch.tensor(reply.vector, dtype=torch.float32).tolist())
