"""How much gradient falls on noise: marks, magnitudes, shares, scoring, and the benchmark."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from comap.agents.create import tiny_folder
from comap.benchmarks.noise_gradients import (
    code_spans,
    content_spans,
    gradient_magnitudes,
    noise_shares,
    observation_logprobs,
)
from comap.cli import main
from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.errors import LanguageModelError
from comap.facts import State, diff
from comap.lm.hf import HFLanguageModel
from comap.lm.tiny import tokenizer_of
from comap.trainers.paw.rows import PaWRow

torch = pytest.importorskip("torch")

TOKENIZER = tokenizer_of(["You see a mug and a pen on the desk"] * 2, 400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("noise") / "m", parameters=200_000, episodes=4)


@pytest.fixture(scope="module")
def lm(folder):
    return HFLanguageModel(folder, device="cpu")


def test_magnitudes_are_the_gradients_of_the_losses():
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 0.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([0, 0])
    for kind, loss in (("ce", lambda p: -p.log()), ("mae", lambda p: 1 - p)):
        leaf = logits.clone().requires_grad_()
        p = leaf.softmax(-1).gather(1, target[:, None])[:, 0]
        loss(p).sum().backward()
        expected = leaf.grad[:, 0].abs().numpy()
        magnitudes = gradient_magnitudes(p.detach().log().numpy(), kind)
        np.testing.assert_allclose(magnitudes, expected, rtol=1e-12)


def test_clipping_takes_confident_tokens_out_and_leaves_the_edge():
    p = [0.1, 0.2, 0.3]
    magnitudes = gradient_magnitudes([math.log(0.1), math.log(0.3)], "cmae", rho=0.2)
    np.testing.assert_allclose(magnitudes, [0.09, 0.0])
    edge = float(np.exp(np.log(np.float64(p[1]))))
    assert gradient_magnitudes([np.log(edge)], "cmae", rho=edge)[0] > 0
    np.testing.assert_allclose(
        gradient_magnitudes(np.log(p), "cmae", rho=1.0), gradient_magnitudes(np.log(p), "mae")
    )


@pytest.mark.parametrize(
    ("text", "noise"),
    [
        ("'B07XYZ1234' [SEP] 'mug'", ["B07XYZ1234"]),
        ("[SEP] XXL USB3 Mug", []),
        ("BLACK2 and iPHONE12x", ["BLACK2", "PHONE12"]),
        ("B07XYZ123", []),  # one letter short
    ],
)
def test_codes_and_capitals_are_noise(text, noise):
    assert [text[start:end] for start, end in code_spans(text)] == noise


def contents_after(state, action, text):
    after = ALFWorldCanonicalizer().update(state, action, text)
    assert after.parsed
    spans = content_spans(diff(state, after), text)
    return after, [text[start:end] for start, end in spans]


def test_only_first_seen_contents_are_noise_in_alfworld():
    opened = "You open the drawer 1. The drawer 1 is open. In it, you see a pen 1, and a pen 12."
    state, noise = contents_after(State(), "open drawer 1", opened)
    assert noise == ["pen 1", "pen 12"]
    for action, text in (
        ("go to drawer 1", opened.replace("open the drawer 1", "arrive at drawer 1", 1)),
        ("take pen 1 from drawer 1", "You pick up the pen 1 from the drawer 1."),
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing."),
        ("move pen 1 to desk 1", "You move the pen 1 to the desk 1."),
    ):
        state, noise = contents_after(state, action, text)
        assert noise == []


TWO = [([0.1, 0.5], [True, False]), ([0.9, 0.2, 0.6], [False, True, False])]


def shares_of(scored, **options):
    """Return the shares of observations, each given by probabilities and marks of its tokens."""
    logprobs = [[math.log(p) for p in probabilities] for probabilities, _ in scored]
    return noise_shares(logprobs, [noisy for _, noisy in scored], **options)


def test_shares_are_those_computed_by_hand():
    measured = shares_of(TWO, rho=0.2)
    assert (measured["transitions"], measured["tokens"], measured["noisy_tokens"]) == (2, 5, 2)
    shares = {name: value["share"] for name, value in measured["shares"].items()}
    assert shares["count"] == 0.4
    assert shares["ce"] == pytest.approx(1.7 / (0.9 + 0.5 + 0.1 + 0.8 + 0.4), abs=1e-6)
    assert shares["mae"] == pytest.approx(0.25 / (0.09 + 0.25 + 0.09 + 0.16 + 0.24), abs=1e-6)
    assert shares["cmae"] == 1.0


def test_the_interval_is_of_whole_observations():
    for observation in TWO:
        alone = shares_of([observation])["shares"]
        assert all(v["low"] == v["share"] == v["high"] for v in alone.values())
    count = shares_of(TWO)["shares"]["count"]
    assert count["low"] == pytest.approx(1 / 3, abs=1e-6) and count["high"] == 0.5
    narrow = shares_of(TWO * 50)["shares"]["count"]
    assert count["low"] < narrow["low"] < 0.4 < narrow["high"] < count["high"]


def row(lm, prompt, text, **changes):
    def ids(part):
        return tuple(lm.tokenizer(part, add_special_tokens=False)["input_ids"])

    parts = {
        "prompt_ids": ids(prompt),
        "response_ids": ids(" look"),
        "header_ids": ids("<|end|><|user|>"),
        "observation_ids": ids(text),
        "footer_ids": ids("<|end|>"),
    }
    return PaWRow(group=0, trajectory=0, t=0, **{**parts, **changes})


def rows_for(lm):
    return [
        row(lm, "You are at a desk 1.", "You see a pen 1."),
        row(lm, "You", "On the desk 1, you see nothing at all, and that is all there is."),
        row(lm, "A longer prompt than the others have, by far.", ""),
        row(lm, "It is dark.", "A"),
    ]


def test_scores_are_those_of_one_row_at_a_time(lm):
    rows = rows_for(lm)
    expected = []
    for sample in rows:
        ids = [
            *sample.prompt_ids,
            *sample.response_ids,
            *sample.header_ids,
            *sample.observation_ids,
        ]
        with torch.no_grad():
            logprobs = lm.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        start = len(ids) - len(sample.observation_ids)
        expected.append([float(logprobs[i - 1, ids[i]]) for i in range(start, len(ids))])
    for batch_tokens in (1, 60, 16_384):
        batch_logprobs = observation_logprobs(lm.model, rows, batch_tokens=batch_tokens)
        assert [len(values) for values in batch_logprobs] == [len(values) for values in expected]
        for one_found, one_expected in zip(batch_logprobs, expected, strict=True):
            np.testing.assert_allclose(one_found, one_expected, atol=1e-10)
    assert batch_logprobs[2] == []


def test_numbers_that_are_none_are_told(lm):
    def spoil(module, args, output):
        return output * float("nan")

    handle = lm.model.get_output_embeddings().register_forward_hook(spoil)
    try:
        with pytest.raises(LanguageModelError, match="not a number"):
            observation_logprobs(lm.model, rows_for(lm))
    finally:
        handle.remove()


def bench(*words):
    return main(["bench", "noise-gradients", *words])


def played(folder, result, *words):
    plain = ("--env-option", "source=generated", "--env-option", "max_episode_steps=6")
    masked = ("--agent-option", "decoding=masked", "--transitions", "5")
    assert bench("--model", str(folder), *plain, *masked, "--out", str(result), *words) == 0
    return json.loads(result.read_text("utf-8"))


def test_the_benchmark_plays_draws_and_records(folder, tmp_path, capsys):
    result = played(folder, tmp_path / "new" / "a.json")
    assert result["transitions"] == 5 <= result["candidates"] and result["noise"] == "contents"
    assert 0 < result["noisy_tokens"] < result["tokens"] and result["faulty_episodes"] == 0
    for share in result["shares"].values():
        assert share["share"] is None or 0 <= share["low"] <= share["high"] <= 1
    assert {"date", "versions", "hardware"} <= set(result) and str(folder) not in json.dumps(result)
    assert "share of CE" in capsys.readouterr().out
    repeated = played(folder, tmp_path / "b.json", "--live", "3", "--batch-tokens", "300")
    for key in ("episodes", "candidates", "tokens", "shares"):
        assert repeated[key] == result[key], key


def test_the_benchmark_says_what_it_cannot_measure(folder, capsys):
    short = ("--env-option", "source=generated", "--env-option", "max_episode_steps=1")
    free = ("--agent", "paw", "--agent-option", "draft_tokens=4", "--episodes", "2")
    for message, words in (
        ("in this process", ("--model", "http://127.0.0.1:1/v1#m")),
        ("transitions", ("--model", str(folder), "--transitions", "0")),
        ("rho", ("--model", str(folder), "--rho", "1.5")),
        ("found none in 2 episodes", ("--model", str(folder), *short, *free)),
    ):
        assert bench(*words) == 2
        assert message in capsys.readouterr().err
