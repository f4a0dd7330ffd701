from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from comap.errors import OptionError
from comap.lm import Message
from comap.lm.sft import Encoded, Row, SFTConfig, _Training, batches_of, encode_rows, fine_tune
from comap.lm.tiny import build_tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROWS = [
    Row((Message("user", f"where is the {thing}?"),), f"in the {place} {number}")
    for number, (thing, place) in enumerate(
        [("mug", "sink"), ("pen", "desk"), ("apple", "fridge"), ("book", "shelf")]
    )
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = [text for row in ROWS for text in (row.messages[0].content, row.answer)] * 2
    folder = tmp_path_factory.mktemp("base")
    return build_tiny(folder, words, parameters=200_000, vocabulary=400)


def greedy(folder: Path, row: Row) -> str:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    messages = [{"role": role, "content": text} for role, text in row.messages]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    out = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    text: str = tokenizer.decode(out, skip_special_tokens=True)
    return text


def test_a_model_learns_its_rows_and_stops(base: Path, tmp_path: Path) -> None:
    config = SFTConfig(tokens=9000, batch_tokens=128, warmup_steps=10)
    report = fine_tune(base, tmp_path / "out", ROWS, config)
    assert [greedy(tmp_path / "out", row) for row in ROWS] == [row.answer for row in ROWS]
    assert report["trained_tokens"] >= 9000 and report["epochs"] > 1
    assert report["losses"][-1][1] < report["losses"][0][1]


def test_training_is_reproducible_and_follows_the_seed(base: Path, tmp_path: Path) -> None:
    files = []
    for number, seed in enumerate((0, 0, 1)):
        out = tmp_path / str(number)
        fine_tune(base, out, ROWS, SFTConfig(tokens=800, batch_tokens=64, seed=seed))
        files.append((out / "model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_only_answers_and_their_ends_carry_loss(base: Path) -> None:
    """The loss is that of a plain forward pass over the answers' tokens, and of no other."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    rows = encode_rows(tokenizer, ROWS)
    assert all(
        tokenizer.decode(row.answer) == r.answer + "<|end|>"
        for row, r in zip(rows, ROWS, strict=True)
    )
    losses = []
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row.prompt + row.answer])
            logits = model(ids).logits[0, len(row.prompt) - 1 : -1]
            losses.append(
                torch.nn.functional.cross_entropy(logits, torch.tensor(row.answer), reduction="sum")
            )
    expected = float(sum(losses)) / sum(len(row.answer) for row in rows)
    training = _Training(torch, model, rows, SFTConfig())
    assert training._step(rows, 0.0) == pytest.approx(expected, rel=1e-5)


def test_prompts_carry_loss_too_where_they_are_to_be_read(base: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    rows = encode_rows(tokenizer, ROWS)
    losses = []
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row.prompt + row.answer])
            losses.append(torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]))
    weights = [len(row) - 1 for row in rows]
    expected = sum(float(x) * n for x, n in zip(losses, weights, strict=True)) / sum(weights)
    found = _Training(torch, model, rows, SFTConfig())._step(rows, 0.0, prompts=True)
    assert found == pytest.approx(expected, rel=1e-5)


def test_prompts_are_read_for_the_first_share_of_tokens(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    real = _Training._step

    def step(self: _Training, batch: Any, rate: float, prompts: bool = False) -> float:
        told.append(prompts)
        return real(self, batch, rate, prompts)

    monkeypatch.setattr(_Training, "_step", step)
    config = SFTConfig(tokens=1200, batch_tokens=64, prompt_share=0.25)
    fine_tune(base, tmp_path / "out", ROWS, config)
    assert told == sorted(told, reverse=True) and sum(told) == pytest.approx(len(told) / 4, abs=2)
    told.clear()
    fine_tune(base, tmp_path / "plain", ROWS, SFTConfig(tokens=200, batch_tokens=64))
    assert told and not any(told)


def test_batches_hold_every_row_once_within_the_limit() -> None:
    rng = random.Random(3)
    rows = [Encoded((1,) * rng.randrange(1, 60), (number,)) for number in range(200)]
    batches = batches_of(rows, 128, random.Random(0))
    assert sorted(row.answer for batch in batches for row in batch) == [(n,) for n in range(200)]
    assert all(max(map(len, batch)) * len(batch) <= 128 for batch in batches)


@pytest.mark.parametrize("rows", [[], [Row((Message("user", "x " * 3000),), "y")]])
def test_no_rows_and_too_long_rows_are_refused(base: Path, tmp_path: Path, rows: Any) -> None:
    with pytest.raises(OptionError, match="expected rows of 1 to 2048 tokens"):
        fine_tune(base, tmp_path / "out", rows)
