"""Recording a language model and replaying it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
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
    LanguageModel,
    LMReply,
    LMRequest,
    Message,
    Sampling,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
    answer,
)
from comap.lm.records import reply_from_json, reply_to_json, request_key
from comap.lm.replay import ReplayLanguageModel

LOOK = (Message("system", "Be brief."), Message("user", "You are in a room."))
DRAFT = Generate(LOOK, Sampling(8, 0.7, 0.9, ("\n",), seed=3), "Action:", purpose="draft")
REQUESTS: tuple[LMRequest, ...] = (
    DRAFT,
    Generate(LOOK, choices=("go", "stay"), adapter="wm"),
    Score(LOOK, ("go", "stay"), ended=False),
    Words(LOOK, (" KEEP", " REVISE"), "Decision:"),
    Encode(LOOK, "Decision:"),
)


class Model:
    """Answers everything, by counting how often it was asked; fails where it is told to."""

    def __init__(self, name: str = "model", offset: float = 0.1):
        self.name, self.offset = name, offset
        self.capabilities = CAPABILITIES
        self.usage = Usage()
        self.asked: list[Any] = []
        self.counted = 0

    def _answer(self, requests: Sequence[Any], make: Any) -> list[Any]:
        replies = []
        for request in requests:
            self.asked.append(request)
            self.usage.retries += 1
            self.usage.cost += 0.5
            number = len(self.asked) + self.offset
            failed = "fail" in request.messages[-1].content
            replies.append(LanguageModelError("no") if failed else make(number))
        return replies

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        return self._answer(
            requests, lambda n: Completion(f"{n}", (1, 2), (-n, -0.1), "length", 5, 2)
        )

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        return self._answer(requests, lambda n: Scores(((-n, -1 / 3), (-2.5,)), 4))

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        return self._answer(requests, lambda n: WordProbabilities((1 / (3 + n), 0.0), 3))

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        return self._answer(requests, lambda n: Encoding((0.5, 0.1 * n, -1e-30), 2))

    def count_tokens(self, text: str) -> int:
        self.counted += 1
        return len(text.split())

    def config(self) -> dict[str, Any]:
        return {"id": "test", "offset": self.offset}


def said(text: str, **fields: Any) -> Generate:
    return Generate((Message("user", text),), **fields)


def test_a_record_replays_exactly(tmp_path: Path) -> None:
    file, model = tmp_path / "deep" / "record.jsonl", Model()
    recorder: LanguageModel = ReplayLanguageModel(file, model)
    recorded = answer(recorder, REQUESTS)
    replay: LanguageModel = ReplayLanguageModel(file)
    assert answer(replay, REQUESTS) == recorded == answer(recorder, REQUESTS)
    assert len(model.asked) == len(REQUESTS)
    assert replay.name == "model" and replay.capabilities == CAPABILITIES
    assert replay.config() == recorder.config()
    assert replay.config()["model"] == model.config() and str(tmp_path) not in str(replay.config())
    assert ReplayLanguageModel(file, name="other").name == "other"


def test_records_from_before_tokens_were_told_are_read() -> None:
    data = reply_to_json(Completion("a", (1,), (-1.0,)))
    assert "tokens" not in data and reply_from_json(data) == Completion("a", (1,), (-1.0,))


def test_usage_is_what_recording_counted_without_cost(tmp_path: Path) -> None:
    file, model = tmp_path / "r.jsonl", Model()
    recorder = ReplayLanguageModel(file, model)
    answer(recorder, REQUESTS)
    replay = ReplayLanguageModel(file)
    answer(replay, REQUESTS)
    assert (recorder.usage.retries, recorder.usage.cost) == (5, 2.5)
    assert replay.usage == replace(recorder.usage, retries=0, cost=0.0)
    assert (replay.usage.requests, replay.usage.prompt_tokens) == (5, 19)
    assert replay.usage.completion_tokens == 4


def test_the_purpose_does_not_matter_and_all_else_does(tmp_path: Path) -> None:
    base = DRAFT
    others: list[LMRequest] = [
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


def test_the_key_stays_the_same_over_versions() -> None:
    key = "b15d6bec3808556bb2648a8907446231e934b9dd1702fec7d382a4e57b8dd805"
    assert request_key(DRAFT) == key, "records made before would no longer be found"
    code = (
        "from comap.lm import *; from comap.lm.records import request_key;"
        "print(request_key(Generate((Message('user', 'é'),), Sampling(stop=('a', 'b')))))"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1


def test_errors_are_not_recorded(tmp_path: Path) -> None:
    file, model = tmp_path / "r.jsonl", Model()
    recorder = ReplayLanguageModel(file, model)
    first, failed = recorder.generate([said("a"), said("fail")])
    assert isinstance(first, Completion) and isinstance(failed, LanguageModelError)
    recorder.generate([said("fail")])
    assert [r.messages[0].content for r in model.asked] == ["a", "fail", "fail"]
    (missing,) = ReplayLanguageModel(file).generate([said("fail")])
    assert isinstance(missing, LanguageModelError) and "record again" in str(missing)
    assert recorder.usage.requests == 1


def test_duplicates_are_asked_once(tmp_path: Path) -> None:
    model = Model()
    replies = ReplayLanguageModel(tmp_path / "r.jsonl", model).generate([said("a")] * 3)
    assert len(model.asked) == 1 and replies[0] == replies[2]


def test_a_missing_record_is_told(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    answer(ReplayLanguageModel(file, Model()), [*REQUESTS, said("far off")])
    asked = replace(DRAFT, sampling=Sampling(8, 0.7, 0.9, ("\n",), seed=4), purpose="reflect")
    missing, found = ReplayLanguageModel(file).generate([asked, DRAFT])
    assert isinstance(found, Completion)
    text = str(missing)
    for part in (str(file), "'reflect'", request_key(asked), "You are in a room.", "generate"):
        assert part in text
    assert text.count("\n") == 0 and "differs in sampling;" in text
    assert isinstance(missing, LanguageModelError)
    (none,) = ReplayLanguageModel(file).generate([Generate(())])
    assert isinstance(none, LanguageModelError)


def test_token_counts_are_recorded(tmp_path: Path) -> None:
    file, model = tmp_path / "r.jsonl", Model()
    recorder = ReplayLanguageModel(file, model)
    assert recorder.count_tokens("a b c") == recorder.count_tokens("a b c") == 3
    assert recorder.count_tokens("\ud800") == 1 and model.counted == 2
    replay = ReplayLanguageModel(file)
    assert replay.count_tokens("a b c") == 3 and replay.count_tokens("\ud800") == 1
    with pytest.raises(LanguageModelError, match="a b c d"):
        replay.count_tokens("a b c d")


def test_a_record_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    first = ReplayLanguageModel(file, Model()).generate([said("a")])
    model = Model()
    again = ReplayLanguageModel(file, model)
    assert again.generate([said("a")]) == first and not model.asked
    again.generate([said("b")])
    assert len(file.read_text().splitlines()) == 3
    header = json.loads(file.read_text().splitlines()[0])
    assert header["schema"] == 1 and header["config"] == {"id": "test", "offset": 0.1}


@pytest.mark.parametrize("other", [Model("other"), Model(offset=0.2)])
def test_another_model_does_not_mix_in(tmp_path: Path, other: Model) -> None:
    file = tmp_path / "r.jsonl"
    ReplayLanguageModel(file, Model()).generate([said("a")])
    before = file.read_bytes()
    with pytest.raises(LanguageModelError, match="another file"):
        ReplayLanguageModel(file, other)
    assert file.read_bytes() == before


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match="found str"):
        ReplayLanguageModel(tmp_path / "r.jsonl", "model")  # type: ignore[arg-type]

    class Odd(Model):
        def config(self) -> dict[str, Any]:
            return {"x": object()}

        def generate(self, requests: Sequence[Generate]) -> list[Any]:
            return ["text"] * len(requests)

    with pytest.raises(LanguageModelError, match="JSON"):
        ReplayLanguageModel(tmp_path / "r.jsonl", Odd())

    class Wrong(Odd):
        def config(self) -> dict[str, Any]:
            return {}

    with pytest.raises(LanguageModelError, match="found str"):
        ReplayLanguageModel(tmp_path / "w.jsonl", Wrong()).generate([said("a")])


# Files.


def test_every_cut_of_the_last_line_leaves_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    recorder = ReplayLanguageModel(file, Model())
    (first,), (second,) = recorder.generate([said("a")]), recorder.generate([said("b")])
    whole = file.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for end in [*range(last, len(whole), 37), len(whole) - 1]:
        file.write_bytes(whole[:end])
        found, missing = ReplayLanguageModel(file).generate([said("a"), said("b")])
        assert found == first and isinstance(missing, LanguageModelError)
        assert file.read_bytes() == whole[:end], "replaying writes nothing"
        again = ReplayLanguageModel(file, Model())
        again.generate([said("b")])
        assert all(json.loads(line) for line in file.read_bytes().splitlines())
        assert isinstance(ReplayLanguageModel(file).generate([said("b")])[0], Completion)
    assert second


def test_a_header_that_was_cut_is_written_again(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_bytes(b'{"kind": "hea')
    with pytest.raises(DataCorrupt, match="empty"):
        ReplayLanguageModel(file)
    ReplayLanguageModel(file, Model()).generate([said("a")])
    assert isinstance(ReplayLanguageModel(file).generate([said("a")])[0], Completion)


BAD_LINES = {
    "no JSON": b'{"kind": "answer", ',
    "not an object": b"[1]",
    "bytes": b"\xff\xfe",
    "empty": b"",
    "deep": b"[" * 100_000,
    "unknown": b'{"kind": "other"}',
    "second header": b'{"kind": "header", "schema": 1}',
    "no key": b'{"kind": "answer", "request": {}, "reply": {}}',
    "count": b'{"kind": "count", "key": "x", "tokens": "3"}',
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_corrupt_line_is_named(tmp_path: Path, bad: bytes) -> None:
    file = tmp_path / "r.jsonl"
    recorder = ReplayLanguageModel(file, Model())
    recorder.generate([said("a"), said("b")])
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([*lines[:2], bad, *lines[2:], b""]))
    before = file.read_bytes()
    for model in (None, Model()):
        with pytest.raises(DataCorrupt, match="line 3"):
            ReplayLanguageModel(file, model)
    assert file.read_bytes() == before


def test_a_changed_record_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    ReplayLanguageModel(file, Model()).generate([said("a")])
    good = file.read_text()
    for old, new in (('"user", "a"', '"user", "b"'), ('"kind": "generate"', '"kind": "words"')):
        file.write_text(good.replace(old, new))
        with pytest.raises(DataCorrupt, match="line 2"):
            ReplayLanguageModel(file)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"kind": "header", "schema": 2},
        {"kind": "header", "schema": 1, "name": 1, "capabilities": [], "config": {}},
        {"kind": "header", "schema": 1, "name": "a", "capabilities": [[]], "config": {}},
        {"kind": "header", "schema": 1, "name": "a", "capabilities": ["fly"], "config": {}},
        {"kind": "header", "schema": 1, "name": "a", "capabilities": [], "config": []},
    ],
    ids=str,
)
def test_other_headers(tmp_path: Path, header: dict[str, Any]) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps(header) + "\n")
    with pytest.raises(DataCorrupt, match="line 1"):
        ReplayLanguageModel(file)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="give a model"):
        ReplayLanguageModel(tmp_path / "none.jsonl")
    with pytest.raises(DataNotFound):
        ReplayLanguageModel(tmp_path)
    with pytest.raises(LanguageModelError, match="cannot write"):
        ReplayLanguageModel(tmp_path, Model())


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "r.jsonl"
    recorder = ReplayLanguageModel(file, Model())
    recorder.generate([said("a")])
    before, write = file.read_bytes(), os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) <= 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:20])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(LanguageModelError, match="No space"):
            recorder.generate([said("b")])
    assert file.read_bytes() == before
    assert isinstance(recorder.generate([said("b")])[0], Completion)


# Several writers.

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_replay_model import Model, said
from comap.lm.replay import ReplayLanguageModel
me, file, number = sys.argv[2], sys.argv[3], int(sys.argv[4])
recorder = ReplayLanguageModel(file, Model())
for i in range(number):
    recorder.generate([said(f"{me} {i} " + "x" * 5000), said(f"both {i}")])
    print(i, flush=True)
"""


def writer(folder: Path, me: str, file: Path, number: int) -> subprocess.Popen[str]:
    (folder / "test_replay_model.py").write_text(Path(__file__).read_text(encoding="utf-8"))
    command = [sys.executable, "-c", WRITER, str(folder), me, str(file), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_record_at_once(tmp_path: Path) -> None:
    file, number = tmp_path / "r.jsonl", 60
    processes = [writer(tmp_path, me, file, number) for me in "ab"]
    assert [process.wait(60) for process in processes if process.communicate()] == [0, 0]
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [line["kind"] for line in lines].count("header") == 1
    assert len(lines) == 1 + 3 * number, "what both asked is recorded once"
    replay = ReplayLanguageModel(file)
    asked = [said(f"{me} {i} " + "x" * 5000) for me in "ab" for i in range(number)]
    assert all(isinstance(reply, Completion) for reply in replay.generate(asked))


@pytest.mark.skipif(sys.platform == "win32", reason="kills")
def test_a_killed_process_leaves_a_record(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    process = writer(tmp_path, "a", file, 10_000)
    assert process.stdout
    done = 0
    for line in process.stdout:
        done = int(line)
        if done >= 20:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    replay = ReplayLanguageModel(file)
    replies = replay.generate([said(f"both {i}") for i in range(done + 1)])
    assert all(isinstance(reply, Completion) for reply in replies)


def test_the_first_recorded_answer_counts_for_both(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    first, second = ReplayLanguageModel(file, Model()), ReplayLanguageModel(file, Model())
    second.generate([said("other")])
    (one,), (two,) = first.generate([said("a")]), second.generate([said("a")])
    assert one == two == ReplayLanguageModel(file).generate([said("a")])[0]


def test_threads_share_a_recorder(tmp_path: Path) -> None:
    recorder = ReplayLanguageModel(tmp_path / "r.jsonl", Model())
    work = [
        threading.Thread(target=lambda i=i: recorder.generate([said(f"{i % 5}"), said(f"own {i}")]))
        for i in range(20)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert recorder.usage.requests == 40
    assert len((tmp_path / "r.jsonl").read_bytes().splitlines()) == 1 + 25


# Data.

FLOATS = st.floats(allow_nan=False)
LOGPROBS = st.lists(FLOATS, max_size=4).map(tuple)
COUNTS = st.integers(0, 10**9)
REPLIES: st.SearchStrategy[LMReply] = st.one_of(
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
def test_replies_come_back_exactly(reply: LMReply) -> None:
    back = reply_from_json(json.loads(json.dumps(reply_to_json(reply))))
    assert back == reply and repr(back) == repr(reply)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"kind": "fly"},
        {"kind": "encode", "vector": {"float32": "AAA"}, "prompt_tokens": 0},
        {"kind": "encode", "vector": {"float32": "AAAA"}, "prompt_tokens": 0},
        {"kind": "encode", "vector": "1 2", "prompt_tokens": 0},
        {"kind": "words", "probabilities": ["1"], "prompt_tokens": 0},
        {"kind": "words", "probabilities": [1.0], "prompt_tokens": -1},
        {"kind": "score", "logprobs": [1.0], "prompt_tokens": 0},
        reply_to_json(Completion("a")) | {"tokens": "a"},
        reply_to_json(Completion("a")) | {"tokens": [1]},
    ],
    ids=str,
)
def test_replies_that_are_none(data: Any) -> None:
    with pytest.raises(DataCorrupt):
        reply_from_json(data)
