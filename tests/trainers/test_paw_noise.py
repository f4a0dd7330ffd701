"""How much gradient falls on noise: marks, magnitudes, shares, scoring, and the benchmark."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.agents.corpus import tiny_folder
from comap.benchmarks import paw_noise
from comap.benchmarks.paw_noise_parts import NoiseOptions
from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.errors import LanguageModelError, OptionError
from comap.facts import Delta, State, diff
from comap.lm.hf import HFLanguageModel
from comap.lm.tiny import tokenizer_of
from comap.trainers.paw.noise import (
    GRADIENTS,
    ScoredObservation,
    gradient_magnitudes,
    noise_shares,
    noisy_tokens,
)
from comap.trainers.paw.noise_spans import code_spans, content_spans
from comap.trainers.paw.observation_scores import observation_logprobs
from comap.trainers.paw.rows import PaWRow
from comap.trainers.paw.token_texts import token_texts

torch = pytest.importorskip("torch")

TOKENIZER = tokenizer_of(["You see a mug and a pen on the desk"] * 2, 400)
TEXTS = st.text(alphabet="AB1 az-é字", max_size=24)


def ids_of(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("noise") / "m", parameters=200_000, episodes=4)


@pytest.fixture(scope="module")
def lm(folder: Path) -> HFLanguageModel:
    return HFLanguageModel(folder, device="cpu")


# -- magnitudes ----------------------------------------------------------------------------------


def test_magnitudes_are_the_gradients_of_the_losses() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 0.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([0, 0])
    for kind, loss in (("ce", lambda p: -p.log()), ("mae", lambda p: 1 - p)):
        leaf = logits.clone().requires_grad_()
        p = leaf.softmax(-1).gather(1, target[:, None])[:, 0]
        loss(p).sum().backward()
        expected = leaf.grad[:, 0].abs().numpy()
        found = gradient_magnitudes(p.detach().log().numpy(), kind)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_clipping_takes_confident_tokens_out_and_leaves_the_edge() -> None:
    p = [0.1, 0.2, 0.3]
    found = gradient_magnitudes([math.log(0.1), math.log(0.3)], "cmae", rho=0.2)
    np.testing.assert_allclose(found, [0.09, 0.0])
    edge = float(np.exp(np.log(np.float64(p[1]))))
    assert gradient_magnitudes([np.log(edge)], "cmae", rho=edge)[0] > 0
    np.testing.assert_allclose(
        gradient_magnitudes(np.log(p), "cmae", rho=1.0), gradient_magnitudes(np.log(p), "mae")
    )


def test_magnitudes_at_the_ends_of_the_scale() -> None:
    values = [-math.inf, -1e-18, 0.0]
    assert gradient_magnitudes(values, "ce").tolist() == [1.0, 1e-18, 0.0]
    assert gradient_magnitudes(values, "mae").tolist() == [0.0, 1e-18, 0.0]


@pytest.mark.parametrize("wrong", [[0.1], [math.nan, -1.0]])
def test_magnitudes_refuse_what_is_no_log_probability(wrong: list[float]) -> None:
    with pytest.raises(OptionError, match="at most 0"):
        gradient_magnitudes(wrong, "ce")
    with pytest.raises(OptionError, match="did you mean 'cmae'"):
        gradient_magnitudes([-1.0], "cmea")


# -- what is noise -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "noise"),
    [
        ("'B07XYZ1234' [SEP] 'mug'", ["B07XYZ1234"]),
        ("[SEP] XXL USB3 Mug", []),
        ("BLACK2 and iPHONE12x", ["BLACK2", "PHONE12"]),
        ("b07xyz1234 black", []),
        ("B07XYZ123", []),  # one letter short
    ],
)
def test_codes_and_capitals_are_noise(text: str, noise: list[str]) -> None:
    assert [text[start:end] for start, end in code_spans(text)] == noise


def test_overlapping_codes_are_all_found() -> None:
    text = "B1B2345678901"
    spans = code_spans(text)
    assert (0, 10) in spans and (2, 12) in spans


def contents_after(state: State, action: str, text: str) -> tuple[State, list[str]]:
    after = ALFWorldCanonicalizer().update(state, action, text)
    assert after.parsed
    spans = content_spans(diff(state, after), text)
    return after, [text[start:end] for start, end in spans]


def test_only_first_seen_contents_are_noise_in_alfworld() -> None:
    opened = "You open the drawer 1. The drawer 1 is open. In it, you see a pen 1, and a pen 12."
    state, noise = contents_after(State(), "open drawer 1", opened)
    assert noise == ["pen 1", "pen 12"]
    came = "You arrive at drawer 1. The drawer 1 is open. In it, you see a pen 1, and a pen 12."
    state, noise = contents_after(state, "go to drawer 1", came)
    assert noise == []
    state, noise = contents_after(
        state, "take pen 1 from drawer 1", "You pick up the pen 1 from the drawer 1."
    )
    assert noise == []
    state, noise = contents_after(
        state, "go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing."
    )
    assert noise == []
    state, noise = contents_after(
        state, "move pen 1 to desk 1", "You move the pen 1 to the desk 1."
    )
    assert noise == []


def test_the_receptacle_itself_and_parts_of_words_are_no_noise() -> None:
    delta = Delta(frozenset({("seen", "desk 1"), ("in", "cd 1", "desk 1"), ("in", "x", "bed 1")}))
    text = "On the desk 1, you see a CD 1, not a cd 11, and x."
    assert [text[start:end] for start, end in content_spans(delta, text)] == ["CD 1"]


# -- marks ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_texts_of_tokens_join_to_the_text(text: str) -> None:
    texts = token_texts(TOKENIZER, ids_of(text))
    assert texts is not None and "".join(texts) == text


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, start=st.integers(0, 20), size=st.integers(1, 6))
def test_a_token_is_noisy_if_a_character_of_it_is(text: str, start: int, size: int) -> None:
    ids = ids_of(text)
    noisy = noisy_tokens(TOKENIZER, ids, lambda said: [(start, start + size)])
    expected, begin = [], 0
    for said in token_texts(TOKENIZER, ids) or ():
        mine = set(range(begin, begin + max(len(said), 1)))  # a part of a character has all of it
        expected.append(bool(mine & set(range(start, start + size))))
        begin += len(said)
    assert list(noisy) == expected


def test_pieces_of_a_noisy_word_are_all_noisy() -> None:
    ids = ids_of("a B07XYZ1234 mug")
    noisy = noisy_tokens(TOKENIZER, ids, code_spans)
    said = "".join(TOKENIZER.decode([i]) for i, flag in zip(ids, noisy, strict=True) if flag)
    assert said.strip() == "B07XYZ1234" and sum(noisy) > 1


def test_half_a_character_at_the_end_is_told_with_the_last_token() -> None:
    ids = ids_of("mug 字")[:-1]
    texts = token_texts(TOKENIZER, ids)
    assert texts is not None and "".join(texts) == TOKENIZER.decode(ids) and len(texts) == len(ids)


def test_a_tokenizer_that_rewrites_its_text_is_refused() -> None:
    class Fickle:
        def decode(self, ids: Sequence[int], **options: Any) -> str:
            return f"{len(ids)}" * len(ids)

    assert token_texts(Fickle(), [1, 2, 3]) is None
    with pytest.raises(LanguageModelError, match="Fickle"):
        noisy_tokens(Fickle(), [1, 2, 3], code_spans)


# -- shares --------------------------------------------------------------------------------------


def scored(probabilities: Sequence[float], noisy: Sequence[bool]) -> ScoredObservation:
    return ScoredObservation(tuple(np.log(probabilities)), tuple(noisy))


TWO = [scored([0.1, 0.5], [True, False]), scored([0.9, 0.2, 0.6], [False, True, False])]


def test_shares_are_those_computed_by_hand() -> None:
    told = noise_shares(TWO, rho=0.2)
    assert (told["transitions"], told["tokens"], told["noisy_tokens"]) == (2, 5, 2)
    shares = {name: value["share"] for name, value in told["shares"].items()}
    assert shares["count"] == 0.4
    assert shares["ce"] == pytest.approx(1.7 / (0.9 + 0.5 + 0.1 + 0.8 + 0.4), abs=1e-6)
    assert shares["mae"] == pytest.approx(0.25 / (0.09 + 0.25 + 0.09 + 0.16 + 0.24), abs=1e-6)
    assert shares["cmae"] == 1.0


def test_the_interval_is_of_whole_observations() -> None:
    for one in TWO:
        alone = noise_shares([one])["shares"]
        assert all(v["low"] == v["share"] == v["high"] for v in alone.values())
    count = noise_shares(TWO, draws=4000)["shares"]["count"]
    assert count["low"] == pytest.approx(1 / 3, abs=1e-6) and count["high"] == 0.5
    narrow = noise_shares(TWO * 50)["shares"]["count"]
    assert count["low"] < narrow["low"] < 0.4 < narrow["high"] < count["high"]


def test_shares_depend_on_the_seed_only_in_their_interval() -> None:
    many = [scored([p, 0.5], [True, False]) for p in np.linspace(0.05, 0.95, 12)]
    one, same, other = (noise_shares(many, seed=seed) for seed in (0, 0, 1))
    assert one == same != other
    for name in ("count", *GRADIENTS):
        assert one["shares"][name]["share"] == other["shares"][name]["share"]
    backwards = noise_shares(many[::-1])["shares"]
    assert backwards["mae"]["share"] == one["shares"]["mae"]["share"]


def test_probabilities_are_told_of_noise_and_of_the_rest() -> None:
    told = noise_shares(TWO)["probabilities"]
    assert told["noisy"] == {"mean": 0.15, "q1": 0.125, "median": 0.15, "q3": 0.175}
    assert told["other"]["median"] == 0.6 and told["other"]["mean"] == pytest.approx(
        2 / 3, abs=1e-4
    )
    assert noise_shares([scored([0.9], [False])])["probabilities"]["noisy"] is None


def test_without_any_gradient_there_is_no_share() -> None:
    told = noise_shares([scored([0.9, 0.8], [True, False])])["shares"]
    assert told["cmae"] == {"share": None, "low": None, "high": None}
    assert told["ce"]["share"] == pytest.approx(1 / 3, abs=1e-6)
    mixed = noise_shares([scored([0.9], [False]), scored([0.1], [True])])["shares"]["cmae"]
    assert mixed == {"share": 1.0, "low": 1.0, "high": 1.0}


def test_shares_refuse_what_they_cannot_be_made_of() -> None:
    for wrong in ({"draws": 0}, {"level": 1.0}):
        with pytest.raises(OptionError):
            noise_shares(TWO, **wrong)
    with pytest.raises(OptionError, match="at least one observation"):
        noise_shares([])
    with pytest.raises(OptionError, match="a mark for each of 2"):
        ScoredObservation((-1.0, -1.0), (True,))


# -- scoring -------------------------------------------------------------------------------------


def row(lm: HFLanguageModel, prompt: str, text: str, **changes: Any) -> PaWRow:
    def ids(part: str) -> tuple[int, ...]:
        return tuple(lm.tokenizer(part, add_special_tokens=False)["input_ids"])

    parts: dict[str, Any] = {
        "prompt_ids": ids(prompt),
        "response_ids": ids(" look"),
        "header_ids": ids("<|end|><|user|>"),
        "observation_ids": ids(text),
        "footer_ids": ids("<|end|>"),
    }
    return PaWRow(group=0, trajectory=0, t=0, **{**parts, **changes})


def rows_for(lm: HFLanguageModel) -> list[PaWRow]:
    return [
        row(lm, "You are at a desk 1.", "You see a pen 1."),
        row(lm, "You", "On the desk 1, you see nothing at all, and that is all there is."),
        row(lm, "A longer prompt than the others have, by far.", ""),
        row(lm, "It is dark.", "A"),
    ]


def test_scores_are_those_of_one_row_at_a_time(lm: HFLanguageModel) -> None:
    rows = rows_for(lm)
    expected = []
    for one in rows:
        ids = [*one.prompt_ids, *one.response_ids, *one.header_ids, *one.observation_ids]
        with torch.no_grad():
            told = lm.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        start = len(ids) - len(one.observation_ids)
        expected.append([float(told[i - 1, ids[i]]) for i in range(start, len(ids))])
    for batch_tokens in (1, 60, 16_384):
        for pad in (0, 7):
            found = observation_logprobs(lm.model, rows, batch_tokens=batch_tokens, pad=pad)
            assert [len(values) for values in found] == [len(values) for values in expected]
            for one_found, one_expected in zip(found, expected, strict=True):
                np.testing.assert_allclose(one_found, one_expected, atol=1e-10)
    assert found[2] == []


def test_what_follows_an_observation_changes_nothing(lm: HFLanguageModel) -> None:
    one = rows_for(lm)[0]
    other = PaWRow(
        group=3,
        trajectory=1,
        t=2,
        prompt_ids=one.prompt_ids,
        response_ids=one.response_ids,
        header_ids=one.header_ids,
        observation_ids=one.observation_ids,
    )
    first, second = observation_logprobs(lm.model, [one, other])
    assert first == second


def test_scoring_leaves_flags_and_gradients_as_they_were(lm: HFLanguageModel) -> None:
    model = lm.model
    calm = observation_logprobs(model, rows_for(lm))
    model.train()
    dropped = torch.nn.Dropout(0.5)
    handle = model.model.register_forward_hook(
        lambda module, args, out: out.__class__(**{**out, "last_hidden_state": dropped(out[0])})
    )
    model.add_module("noise_in_training", dropped)
    try:
        assert observation_logprobs(model, rows_for(lm)) == calm
        assert model.training and dropped.training and model.lm_head.training
        assert all(weight.grad is None for weight in model.parameters())
    finally:
        handle.remove()
        del model.noise_in_training
        model.eval()


def test_numbers_that_are_none_are_told(lm: HFLanguageModel) -> None:
    def spoil(module: Any, args: Any, output: Any) -> Any:
        output.logits = output.logits * float("nan")
        return output

    handle = lm.model.register_forward_hook(spoil)
    try:
        with pytest.raises(LanguageModelError, match="not a number"):
            observation_logprobs(lm.model, rows_for(lm))
    finally:
        handle.remove()
    with pytest.raises(OptionError, match="batch_tokens"):
        observation_logprobs(lm.model, [], batch_tokens=0)


# -- the benchmark -------------------------------------------------------------------------------


def bench(*words: str) -> int:
    parser = argparse.ArgumentParser()
    paw_noise.add_parser(parser.add_subparsers())
    options = parser.parse_args(["noise-gradients", *words])
    code: int = options.run(options)
    return code


def played(folder: Path, result: Path, *words: str) -> dict[str, Any]:
    plain = ("--env-option", "source=generated", "--env-option", "max_episode_steps=6")
    masked = ("--agent-option", "decoding=masked", "--transitions", "5")
    assert bench("--model", str(folder), *plain, *masked, "--result", str(result), *words) == 0
    told: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return told


def test_the_benchmark_plays_draws_and_records(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = played(folder, tmp_path / "new" / "a.json")
    assert told["transitions"] == 5 <= told["candidates"] and told["noise"] == "contents"
    assert 0 < told["noisy_tokens"] < told["tokens"] and told["faulty_episodes"] == 0
    for share in told["shares"].values():
        assert share["share"] is None or 0 <= share["low"] <= share["high"] <= 1
    assert {"date", "versions", "hardware"} <= set(told) and str(folder) not in json.dumps(told)
    assert "share of CE" in capsys.readouterr().out
    again = played(folder, tmp_path / "b.json", "--live", "3", "--batch-tokens", "300")
    for key in ("episodes", "candidates", "tokens", "shares"):
        assert again[key] == told[key], key
    other = played(folder, tmp_path / "c.json", "--seed", "1")
    assert other["shares"] != told["shares"]


def test_the_benchmark_says_what_it_cannot_measure(folder: Path) -> None:
    with pytest.raises(OptionError, match="in this process"):
        bench("--model", "http://127.0.0.1:1/v1#m")
    with pytest.raises(OptionError, match="transitions"):
        bench("--model", str(folder), "--transitions", "0")
    short = ("--env-option", "source=generated", "--env-option", "max_episode_steps=1")
    free = ("--agent", "paw", "--agent-option", "draft_tokens=4", "--episodes", "2")
    with pytest.raises(OptionError, match="found none in 2 episodes"):
        bench("--model", str(folder), *short, *free)
    with pytest.raises(OptionError, match="rho"):
        NoiseOptions(rho=1.5)


def test_the_benchmark_measures_lists_of_embedded_products(folder: Path, tmp_path: Path) -> None:
    shop = ("--env", "comap/WebShop-v0", "--max-observation", "200")
    few = ("--transitions", "2", "--episodes", "2")
    told = {
        kind: played(folder, tmp_path / "shop.json", *shop, *few, *words)
        for kind, words in (("codes", ()), ("listings", ("--noise", "listings")))
    }
    for kind, one in told.items():
        assert one["noise"] == kind and one["env"] == "comap/WebShop-v0"
        assert one["transitions"] == 2 and one["max_observation"] == 200
        assert one["episodes"] == 2 and 0 < one["noisy_tokens"] < one["tokens"]
    shares = {kind: one["shares"]["count"]["share"] for kind, one in told.items()}
    assert shares["codes"] < shares["listings"]  # which has titles and prices as well
