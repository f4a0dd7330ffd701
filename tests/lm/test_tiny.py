"""Tiny models are what was asked for, and fine-tuning them trains exactly the tokens it should."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from comap.errors import OptionError
from comap.lm import Message
from comap.lm.tiny import (
    Row,
    SFTConfig,
    answer_loss,
    build_tiny,
    encode_rows,
    fine_tune,
    shape_of,
    tokenizer_of,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CORPUS = ["You are in the middle of a room. You see a cabinet 12, and a fridge 1."] * 3
TOKENIZER = tokenizer_of(CORPUS, 400)
TRAIN = """
import sys
from comap.lm.tiny import tokenizer_of
print(tokenizer_of([sys.argv[1]] * 3, 400).backend_tokenizer.to_str())
"""
WORDS = "a b c cabinet d e f fridge mug plate shelf"


def digest(folder):
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_the_chat_template_opens_and_closes_each_message():
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    text = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>hi<|end|><|assistant|>ho<|end|><|assistant|>"


@pytest.mark.parametrize("parameters", [200_000, 500_000, 3_000_000, 20_000_000, 100_000_000])
def test_shapes_come_near_the_size_asked_for(parameters):
    assert abs(shape_of(parameters, 400).parameters - parameters) < 0.15 * parameters


def test_the_number_of_parameters_is_the_models_own(tmp_path):
    from transformers import AutoModelForCausalLM

    path = build_tiny(tmp_path, CORPUS, parameters=300_000, vocabulary=400)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.num_parameters() == shape_of(300_000, len(TOKENIZER)).parameters
    assert str(model.dtype) == "torch.float64"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parameters": 1000}, "200,000"),
        ({"vocabulary": 10}, "at least 320"),
        ({"dtype": "int8"}, "float32"),
    ],
)
def test_wrong_sizes_are_refused(tmp_path, arguments, message):
    with pytest.raises(OptionError, match=message):
        build_tiny(tmp_path, CORPUS, **arguments)


def test_the_same_seed_gives_the_same_files_in_any_process(tmp_path):
    hash_seed = "7" if os.environ.get("PYTHONHASHSEED") != "7" else "0"  # than this process has
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", TRAIN, WORDS]
    elsewhere = subprocess.check_output(command, env=environment, text=True)
    assert elsewhere.strip() == tokenizer_of([WORDS] * 3, 400).backend_tokenizer.to_str()
    digests = []
    for number, seed in enumerate((1, 1, 2)):
        path = build_tiny(tmp_path / str(number), [WORDS] * 3, parameters=200_000, seed=seed)
        digests.append(digest(path))
    assert digests[0] == digests[1] != digests[2]


ROWS = [
    Row((Message("user", f"where is the {thing}?"),), f"in the {place} {number}")
    for number, (thing, place) in enumerate(
        [("mug", "sink"), ("pen", "desk"), ("apple", "fridge"), ("book", "shelf")]
    )
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    words = [text for row in ROWS for text in (row.messages[0].content, row.answer)] * 2
    folder = tmp_path_factory.mktemp("base")
    return build_tiny(folder, words, parameters=200_000, vocabulary=400)


def test_training_is_reproducible_and_follows_the_seed(base, tmp_path):
    files = []
    for number, seed in enumerate((0, 0, 1)):
        out = tmp_path / str(number)
        report = fine_tune(base, out, ROWS, SFTConfig(tokens=800, batch_tokens=64, seed=seed))
        assert report["trained_tokens"] >= 800 and report["epochs"] > 1
        files.append((out / "model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_only_answers_and_their_ends_carry_loss(base):
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
    assert float(answer_loss(model, rows).detach()) == pytest.approx(expected, rel=1e-5)


def test_passes_may_compute_in_half_while_weights_stay_in_single_precision(base, tmp_path):
    losses, dtypes = {}, {}
    for half in (False, True):
        config = SFTConfig(tokens=800, batch_tokens=64, half=half)
        report = fine_tune(base, tmp_path / str(half), ROWS, config)
        losses[half] = report["losses"][-1][1]
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / str(half))
        dtypes[half] = {weight.dtype for weight in model.parameters()}

    assert dtypes[True] == dtypes[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02) and losses[True] != losses[False]


@pytest.mark.parametrize("rows", [[], [Row((Message("user", "x " * 3000),), "y")]])
def test_no_rows_and_too_long_rows_are_refused(base, tmp_path, rows):
    with pytest.raises(OptionError, match="expected rows of 1 to 2048 tokens"):
        fine_tune(base, tmp_path / "out", rows)


def test_a_name_has_the_same_tokens_in_a_goal_on_a_page_and_in_an_action():
    goal, page, action = (
        'star "old mill".\n',
        "link 'old mill'\n",
        "click [link 'old mill'] [old mill]",
    )
    tokenizer = tokenizer_of([goal, page, action] * 2, 400, tokens="names")
    for text in (goal, page, action, "it's 2031-10-05, isn't it? 'Old  mill'\n\n"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        if "old" in text:
            assert {"old", "\u0120mill"} <= {*tokenizer.tokenize(text)}
    with pytest.raises(OptionError, match="tokens cannot be 'letters'"):
        tokenizer_of([goal], 400, tokens="letters")
