"""Language models around others: recording and replaying, and asking by adapter."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import DataCorrupt, DataNotFound, LanguageModelError
from comap.lm import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    Message,
    NextWord,
    Sampling,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    answer,
)
from comap.lm.base import BaseLanguageModel
from comap.lm.replay import (
    ReplayLanguageModel,
    RoutedLanguageModel,
    reply_from_json,
    reply_to_json,
    request_key,
)

LOOK = (Message("system", "Be brief."), Message("user", "You are in a room."))
DRAFT = Generate(LOOK, Sampling(8, 0.7, 0.9, ("\n",), seed=3), "Action:", purpose="draft")
REQUESTS = (
    DRAFT,
    Generate(LOOK, choices=("go", "stay"), adapter="wm"),
    Score(LOOK, ("go", "stay"), ended=False),
    NextWord(LOOK, (" KEEP", " REVISE"), "Decision:"),
    Encode(LOOK, "Decision:"),
)


class Model(BaseLanguageModel):
    """Answers with its name and the number of the request; fails where it is told to."""

    def __init__(self, name="model", capabilities=CAPABILITIES):
        self.name, self.capabilities, self.usage = name, capabilities, Usage()
        self.batches: list[list[Any]] = []
        self.asked: list[Any] = []
        self.counted = 0

    def _answer(self, requests):
        self.batches.append(list(requests))
        return [self._reply(request) for request in requests]

    def _reply(self, request):
        self.asked.append(request)
        self.usage.retries += 1
        self.usage.cost += 0.5
        n = len(self.asked)
        if request.messages and "fail" in request.messages[-1].content:
            return LanguageModelError(f"{n}")
        text = f"{self.name}{n}: {request.messages[-1].content}"
        replies = {
            Generate: Completion(text, (1, 2), (-n, -0.1), "length", 5, 2),
            Score: Scores(((-n, -1 / 3), (-2.5,)), 4),
            NextWord: WordProbabilities((1 / (3 + n), 0.0), 3),
            Encode: Encoding((0.5, 0.1 * n, -1e-30), 2),
        }
        return replies[type(request)]

    def count_tokens(self, text):
        self.counted += 1
        return len(text.split())

    def config(self):
        return {"id": self.name}


def generate_request(text, **fields):
    return Generate((Message("user", text),), **fields)


def test_a_record_replays_exactly(tmp_path):
    file, model = tmp_path / "deep" / "record.jsonl", Model()
    recorder = ReplayLanguageModel(file, model)
    recorded = answer(recorder, REQUESTS)
    replay = ReplayLanguageModel(file)
    assert answer(replay, REQUESTS) == recorded == answer(recorder, REQUESTS)
    assert len(model.asked) == len(REQUESTS)
    assert replay.name == "model" and replay.capabilities == CAPABILITIES
    assert replay.config() == recorder.config()
    assert replay.config()["model"] == model.config() and str(tmp_path) not in str(replay.config())
    assert ReplayLanguageModel(file, name="other").name == "other"


def test_usage_is_what_recording_counted_without_cost(tmp_path):
    file, model = tmp_path / "r.jsonl", Model()
    recorder = ReplayLanguageModel(file, model)
    answer(recorder, REQUESTS)
    replay = ReplayLanguageModel(file)
    answer(replay, REQUESTS)
    assert (recorder.usage.retries, recorder.usage.cost) == (5, 2.5)
    assert replay.usage == replace(recorder.usage, retries=0, cost=0.0)
    assert (replay.usage.requests, replay.usage.prompt_tokens) == (5, 19)
    assert replay.usage.completion_tokens == 4


def test_the_purpose_does_not_matter_and_all_else_does(tmp_path):
    base = DRAFT
    others = [
        replace(base, purpose="reflect"),
        replace(base, prefix=""),
        replace(base, adapter="x"),
        replace(base, choices=()),
        replace(base, messages=LOOK[1:]),
        replace(base, sampling=replace(base.sampling, seed=4)),
        replace(base, sampling=replace(base.sampling, temperature=0.0)),
        replace(base, sampling=replace(base.sampling, top_p=1.0)),
        replace(base, sampling=replace(base.sampling, stop=())),
        replace(base, sampling=replace(base.sampling, max_new_tokens=9)),
        Encode(LOOK, "Action:"),
    ]
    keys = [request_key(request) for request in others]
    assert keys[0] == request_key(base)
    assert len(set(keys)) == len(keys)
    zero = Generate(LOOK, Sampling(temperature=0, top_p=1))
    assert request_key(zero) == request_key(Generate(LOOK))


def test_the_key_stays_the_same_over_versions():
    key = "b15d6bec3808556bb2648a8907446231e934b9dd1702fec7d382a4e57b8dd805"
    assert request_key(DRAFT) == key, "records made before would no longer be found"


def test_a_missing_record_is_told(tmp_path):
    file = tmp_path / "r.jsonl"
    answer(ReplayLanguageModel(file, Model()), [*REQUESTS, generate_request("far off")])
    changed_request = replace(
        DRAFT, sampling=Sampling(8, 0.7, 0.9, ("\n",), seed=4), purpose="reflect"
    )
    missing, recorded_reply = ReplayLanguageModel(file).generate([changed_request, DRAFT])
    assert isinstance(recorded_reply, Completion)
    text = str(missing)
    for part in (
        str(file),
        "'reflect'",
        request_key(changed_request),
        "You are in a room.",
        "generate",
    ):
        assert part in text
    assert text.count("\n") == 0 and "differs in sampling;" in text
    assert isinstance(missing, LanguageModelError)
    (empty_reply,) = ReplayLanguageModel(file).generate([Generate(())])
    assert isinstance(empty_reply, LanguageModelError)


def test_token_counts_are_recorded(tmp_path):
    file, model = tmp_path / "r.jsonl", Model()
    recorder = ReplayLanguageModel(file, model)
    assert recorder.count_tokens("a b c") == recorder.count_tokens("a b c") == 3
    assert recorder.count_tokens("\ud800") == 1 and model.counted == 2
    replay = ReplayLanguageModel(file)
    assert replay.count_tokens("a b c") == 3 and replay.count_tokens("\ud800") == 1
    with pytest.raises(LanguageModelError, match="a b c d"):
        replay.count_tokens("a b c d")


def test_a_record_goes_on(tmp_path):
    file = tmp_path / "r.jsonl"
    first = ReplayLanguageModel(file, Model()).generate([generate_request("a")])
    model = Model()
    reopened = ReplayLanguageModel(file, model)
    assert reopened.generate([generate_request("a")]) == first and not model.asked
    reopened.generate([generate_request("b")])
    assert len(file.read_text().splitlines()) == 3
    header = json.loads(file.read_text().splitlines()[0])
    assert header["schema"] == 2 and header["config"] == {"id": "model"}


def test_another_model_does_not_mix_in(tmp_path):
    file = tmp_path / "r.jsonl"
    ReplayLanguageModel(file, Model()).generate([generate_request("a")])
    before = file.read_bytes()
    with pytest.raises(LanguageModelError, match="another file"):
        ReplayLanguageModel(file, Model("other"))
    assert file.read_bytes() == before


def test_a_header_that_was_cut_is_written_again(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_bytes(b'{"schema": "hea')
    with pytest.raises(DataCorrupt, match=r"found the header \{\}"):
        ReplayLanguageModel(file)
    ReplayLanguageModel(file, Model()).generate([generate_request("a")])
    assert isinstance(ReplayLanguageModel(file).generate([generate_request("a")])[0], Completion)


BAD_LINES = [
    b'{"key": "x", ',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"key": "x", "request": {}, "value": {}}',
    b'{"key": "tokens x", "value": "3"}',
]


@pytest.mark.parametrize("bad", BAD_LINES, ids=lambda line: line[:20].decode("latin-1"))
def test_a_corrupt_line_is_named(tmp_path, bad):
    file = tmp_path / "r.jsonl"
    recorder = ReplayLanguageModel(file, Model())
    recorder.generate([generate_request("a"), generate_request("b")])
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([*lines[:2], bad, *lines[2:], b""]))
    before = file.read_bytes()
    for model in (None, Model()):
        with pytest.raises(DataCorrupt, match="line 3"):
            ReplayLanguageModel(file, model)
    assert file.read_bytes() == before


def test_a_changed_record_is_noticed(tmp_path):
    file = tmp_path / "r.jsonl"
    ReplayLanguageModel(file, Model()).generate([generate_request("a")])
    good = file.read_text()
    for original, new in (
        ('"user", "a"', '"user", "b"'),
        ('"kind": "generate"', '"kind": "words"'),
    ):
        file.write_text(good.replace(original, new))
        with pytest.raises(DataCorrupt, match="line 2"):
            ReplayLanguageModel(file)


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(DataNotFound, match="give a model"):
        ReplayLanguageModel(tmp_path / "none.jsonl")
    with pytest.raises(DataNotFound):
        ReplayLanguageModel(tmp_path)
    with pytest.raises(LanguageModelError, match="cannot write"):
        ReplayLanguageModel(tmp_path, Model())


def test_threads_share_a_recorder(tmp_path):
    recorder = ReplayLanguageModel(tmp_path / "r.jsonl", Model())
    work = [
        threading.Thread(
            target=lambda i=i: recorder.generate(
                [generate_request(f"{i % 5}"), generate_request(f"own {i}")]
            )
        )
        for i in range(20)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert recorder.usage.requests == 40
    assert len((tmp_path / "r.jsonl").read_bytes().splitlines()) == 1 + 25


FLOATS = st.floats(allow_nan=False)
LOGPROBS = st.lists(FLOATS, max_size=4).map(tuple)
COUNTS = st.integers(0, 10**9)
REPLIES = st.one_of(
    st.builds(
        Completion,
        st.text(),
        st.none() | st.lists(COUNTS, max_size=4).map(tuple),
        st.none() | LOGPROBS,
        st.sampled_from(["stop", "length"]),
        COUNTS,
        COUNTS,
        st.none() | st.lists(st.text(), max_size=4).map(tuple),
    ),
    st.builds(Scores, st.lists(LOGPROBS, max_size=3).map(tuple), COUNTS),
    st.builds(WordProbabilities, LOGPROBS, COUNTS),
    st.builds(Encoding, st.lists(st.floats(width=32, allow_nan=False)).map(tuple), COUNTS),
    st.builds(Encoding, LOGPROBS, COUNTS),
)


@given(REPLIES)
def test_replies_come_back_exactly(reply):
    back = reply_from_json(json.loads(json.dumps(reply_to_json(reply))))
    assert back == reply and repr(back) == repr(reply)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"kind": "fly"},
        {"kind": "encode", "vector": {"float32": "AAA="}, "prompt_tokens": 0},
        {"kind": "words", "probabilities": ["1"], "prompt_tokens": 0},
        {"kind": "score", "logprobs": [1.0], "prompt_tokens": 0},
        reply_to_json(Completion("a")) | {"tokens": [1]},
    ],
    ids=str,
)
def test_replies_that_are_none(data):
    with pytest.raises(DataCorrupt):
        reply_from_json(data)


# The router.


def texts(replies):
    return [getattr(reply, "text", str(reply)) for reply in replies]


def test_each_request_goes_to_its_model_and_the_order_is_kept():
    models = {"agent": Model("A"), "wm": Model("W")}
    routed = RoutedLanguageModel(models, "agent")
    requests = [
        generate_request(text, adapter=adapter, purpose="draft")
        for text, adapter in (("a", "wm"), ("b", None), ("c", "agent"), ("d", "wm"))
    ]
    assert texts(routed.generate(requests)) == ["W1: a", "A1: b", "A2: c", "W2: d"]
    (agent_batch,), (wm_batch,) = models["agent"].batches, models["wm"].batches
    assert [len(agent_batch), len(wm_batch)] == [2, 2], "one batch for each model"
    assert {(request.adapter, request.purpose) for request in agent_batch + wm_batch} == {
        (None, "draft")
    }
    of_the_wm = [replace(request, adapter="wm") for request in REQUESTS]
    reply_types = [type(reply) for reply in answer(routed, of_the_wm)]
    assert reply_types == [Completion, Completion, Scores, WordProbabilities, Encoding]


class Broken(Model):
    """A language model that can answer nothing."""

    def _answer(self, requests):
        raise LanguageModelError("the server is gone")


def test_what_fails_costs_only_its_own_requests():
    routed = RoutedLanguageModel({"agent": Model("A"), "wm": Broken("W")}, "agent")
    requests = [generate_request("a", adapter=adapter) for adapter in ("agnt", "agent", "wm")]
    assert texts(routed.generate(requests)) == [
        "there is no model 'agnt'; did you mean 'agent'?",
        "A1: a",
        "the server is gone",
    ]
    assert routed.generate([]) == []


def test_a_model_of_several_names_gets_one_batch_and_is_counted_once():
    shared, wm_model = Model("S"), Model("O")
    routed = RoutedLanguageModel({"agent": shared, "agent_ema": shared, "wm": wm_model}, "wm")
    routed.generate([generate_request("a", adapter=name) for name in ("agent", "agent_ema", "wm")])
    assert [len(batch) for batch in shared.batches] == [2]
    assert routed.usage == Usage(retries=3, cost=1.5)


def test_a_routed_model_has_what_all_of_its_models_have():
    capability_sets = (frozenset({"generate", "score"}), frozenset({"generate", "encode"}))
    models = {"wm": Model("W", capability_sets[0]), "agent": Model("AA", capability_sets[1])}
    routed = RoutedLanguageModel(models, "agent", name="both")
    assert routed.capabilities == {"generate"}
    assert routed.config() == {
        "name": "both",
        "kind": "routed",
        "adapters": ["agent", "wm"],
        "adapter": "agent",
        "models": {"agent": {"id": "AA"}, "wm": {"id": "W"}},
    }
