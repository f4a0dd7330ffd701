"""What a policy learns before its first update: replies alone, or whole conversations with side steps."""

from __future__ import annotations

import pytest

pytest.importorskip("trl")

from transformers import AutoTokenizer

from comap.agents.paw import PaWConfig
from comap.errors import OptionError
from comap.lm.tiny import SFTConfig, build_tiny, encode_rows, fine_tune, tokenizer_of
from comap.trainers import Environments, train_paw
from comap.trainers.config import SharedTraining
from comap.trainers.paw.config import preset
from comap.trainers.paw.warmup import conversation_rows
from comap.trainers.setup import show_expert
from comap.trainers.sft import ASIDE

ENV = Environments("comap/ALFWorld-v0", {"source": "generated", "difficulty": "easy"})
BRIEF = PaWConfig(prompts="brief", context="concat", max_length=1500, draft_tokens=12)


@pytest.fixture(scope="module")
def demos():
    config = SharedTraining(demonstrations=8)
    return show_expert(ENV, config, side_steps=0.5)


@pytest.fixture(scope="module")
def base(tmp_path_factory, demos):
    texts = [step.observation for episode in demos for step in episode.steps]
    folder = tmp_path_factory.mktemp("models") / "base"
    return build_tiny(folder, texts, parameters=200_000, vocabulary=400, dtype="float32")


def test_some_demonstrations_have_side_steps_and_all_succeed(demos):
    aside = [sum(bool(step.notes.get(ASIDE)) for step in episode.steps) for episode in demos]
    assert any(aside) and not all(aside) and all(episode.success for episode in demos)


def learned_texts(rows, base):
    """The text of each span of tokens that carry loss."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    for row in encode_rows(tokenizer, rows):
        tokens = row.prompt + row.answer
        yield [tokenizer.decode(tokens[start:end]) for start, end in row.spans]


def test_replies_alone_are_learned_each_once_and_no_side_step(demos, base):
    rows = list(conversation_rows(demos, BRIEF, base))
    plan_actions = [
        [s.action for s in demonstration.steps if not s.notes.get(ASIDE)] for demonstration in demos
    ]
    texts = [*learned_texts(rows, base)]
    assert texts == [[f"Action: {action}<|end|>" for action in actions] for actions in plan_actions]
    for row, episode in zip(rows, demos, strict=True):
        observations = [message.content for message in row.messages if message.role == "user"]
        assert observations[1:] == [step.observation for step in episode.steps[:-1]]


def test_of_a_share_of_the_episodes_all_tokens_are_learned(demos, base):
    whole = list(conversation_rows(demos, BRIEF, base, observations=1.0))
    for (text,), episode in zip(learned_texts(whole, base), demos, strict=True):
        assert all(step.observation in text for step in episode.steps[:-1])
    is_whole = [
        len(row.spans) == 1 for row in conversation_rows(demos, BRIEF, base, observations=0.5)
    ]
    assert 0 < sum(is_whole) < len(is_whole)


def test_side_steps_of_demonstrators_that_err_are_copied(demos, base):
    config = SharedTraining(demonstrations=8)
    erring = show_expert(ENV, config, side_steps=0.5, copied=True)
    played = [[step.action for step in episode.steps] for episode in erring]
    assert played == [[step.action for step in episode.steps] for episode in demos]
    texts = [*learned_texts(conversation_rows(erring, BRIEF, base), base)]
    assert texts == [[f"Action: {action}<|end|>" for action in actions] for actions in played]


def test_observations_are_learned_where_that_is_asked_for(demos, base, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    def nll(folder):
        """Mean over the first 60 tokens, most of which are the room's."""
        model, row_losses = AutoModelForCausalLM.from_pretrained(folder), []
        for row in encode_rows(AutoTokenizer.from_pretrained(base), rows):
            ids = torch.tensor([(*row.prompt, *row.answer)])[:, :60]
            with torch.no_grad():
                row_losses.append(float(model(input_ids=ids, labels=ids).loss))
        return sum(row_losses) / len(row_losses)

    losses = {}
    for share in (0.0, 1.0):
        rows = list(conversation_rows(demos, BRIEF, base, observations=share))
        sft = SFTConfig(tokens=30_000, batch_tokens=1024, warmup_steps=5)
        fine_tune(base, tmp_path / str(share), rows, sft)
        losses[share] = nll(tmp_path / str(share))
    assert losses[1.0] < losses[0.0] - 1.5


@pytest.mark.parametrize(("precision", "half"), [("auto", False), ("bfloat16", True)])
def test_a_warm_up_computes_as_the_training_does(base, tmp_path, monkeypatch, precision, half):
    """Where it does, too: a pretrained model was warmed up on the CPU beside an idle GPU."""
    configs = []

    def watched(base, out, rows, config, *rest):
        configs.append(config)
        raise OptionError("seen")

    monkeypatch.setattr("comap.trainers.paw.warmup.fine_tune", watched)
    config = preset("tiny", warmup_tokens=100, demonstrations=1, precision=precision)
    for device in ("auto", "meta"):
        with pytest.raises(OptionError, match="seen"):
            train_paw(config, model=base, make_env=ENV, out=tmp_path / device, device=device)
    assert [sft_config.half for sft_config in configs] == [half, half]
    assert [sft_config.device for sft_config in configs] == ["cpu", "meta"]


def test_observations_need_a_conversation(tmp_path):
    config = preset("tiny", warmup_observations=1.0)
    with pytest.raises(OptionError, match="expected context='concat' with warmup_observations"):
        train_paw(config, model=None, make_env=ENV, out=tmp_path)


def test_an_entity_can_be_one_token():
    texts = ["You open fridge 1 and see mug 12. Take mug 12 from fridge 1."] * 3
    plain, entities = (tokenizer_of(texts, 400, tokens=kind) for kind in ("words", "entities"))
    text = "You see mug 12 and fridge 7."
    words = entities.tokenize(text)
    assert [word.replace("\u0120", " ") for word in words[:3]] == ["You", " see", " mug 12"]
    for tokenizer in (plain, entities):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(words) < len(plain.tokenize(text))
