"""PaW lets models think, as its code base does: in rollouts and in the rows that are learned."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import pytest

from comap.agents import ReActConfig, create_agent, run_episode
from comap.errors import OptionError
from comap.lm.load import load_tokenizer
from comap.lm.tiny import encode_rows
from comap.trainers import Environments, SharedTraining, paw_preset, train_paw
from comap.trainers.paw.rollouts import Group, roll_out
from comap.trainers.paw.rows import Serializer
from comap.trainers.paw.training import Policy
from comap.trainers.paw.warmup import conversation_rows
from comap.trainers.setup import expert_demonstrations
from kits.paw import watched_generation
from kits.template_families import ends_with, model_folder, squeezed

pytest.importorskip("torch")
pytest.importorskip("trl")

OPEN, CLOSED = "<|im_start|>assistant", "<think></think>"
SHORT = {"draft_tokens": 6, "max_length": 1500, "observation_tokens": 60}
NO_THOUGHT = {"enable_thinking": False}


def make(**options):
    env_options = {"split": "train", "source": "generated", "topk": 1, **options}
    return gym.make("comap/SearchQA-v0", **env_options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("qwen3") / "model", "qwen3")


@pytest.fixture(scope="module")
def lm(folder):
    from comap.lm import HFLanguageModel

    return HFLanguageModel(folder, device="cpu")


def prompts_of(agent, lm):
    """Return the texts of the prompts of an episode, as the model read them."""
    with watched_generation() as generations:
        run_episode(make(), agent, seed=0, lm=lm)
    return [lm.tokenizer.decode(prompt) for prompt, _ in generations]


def test_paw_lets_qwen3_think_and_others_do_not(lm):
    assert all(ends_with(text, OPEN) for text in prompts_of(create_agent("paw", **SHORT), lm))
    quiet = create_agent("paw", thinking=False, **SHORT)
    assert all(ends_with(text, CLOSED) for text in prompts_of(quiet, lm))
    for name in ("react", "comap", "reflexion"):
        agent = create_agent(name, draft_tokens=6, max_length=1500)
        assert all(ends_with(text, CLOSED) for text in prompts_of(agent, lm)), name
    thinks = create_agent("react", thinking=True, draft_tokens=6, max_length=1500)
    assert all(ends_with(text, OPEN) for text in prompts_of(thinks, lm))


@pytest.mark.parametrize("context", ["summary", "concat"])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("template", [{}, NO_THOUGHT])
def test_rows_have_the_prompts_of_generation(folder, context, thinking, template):
    from comap.lm import HFLanguageModel

    lm = HFLanguageModel(folder, device="cpu", chat_template_kwargs=template)
    agent = create_agent("paw", context=context, thinking=thinking, **SHORT)
    serializer = Serializer(lm.tokenizer, thinking=thinking, template=template)
    task = make().unwrapped.tasks.ids[0]
    with watched_generation() as generations:
        rows = roll_out(make, agent, [Group(0, task, 2)], serializer, lm=lm, seed=3).rows
    assert {(row.prompt_ids, row.response_ids) for row in rows} == set(generations)
    end = OPEN if thinking and not template else CLOSED
    assert all(ends_with(lm.tokenizer.decode(row.prompt_ids), end) for row in rows)


def test_demonstrations_are_learned_behind_the_prompts_of_acting(folder):
    demonstrations = list(expert_demonstrations(make(), make().unwrapped.tasks.ids[:1]))
    tokenizer = load_tokenizer(folder, None)
    for thinking, end in ((True, OPEN), (False, CLOSED)):
        config = paw_preset("search_r1").acting()
        config = replace(config, thinking=thinking)
        (row, *_) = encode_rows(tokenizer, conversation_rows(demonstrations, config, folder))
        first = tokenizer.decode(row.prompt)
        assert (OPEN + CLOSED in squeezed(first)) == (end == CLOSED)


def test_a_policy_s_model_has_the_training_s_variables(folder):
    config = paw_preset("tiny", chat_template_kwargs=NO_THOUGHT)
    lm = Policy(config, folder, device="cpu").language_model()
    assert lm.config()["chat_template_kwargs"] == NO_THOUGHT and not lm.thinks(True)


def test_a_training_records_what_its_template_is_told(folder, tmp_path):
    import json

    homes = Environments("comap/ALFWorld-v0", {"source": "generated", "max_episode_steps": 2})
    config = paw_preset(
        "tiny",
        updates=1,
        groups=1,
        members=2,
        max_episode_steps=2,
        evaluation_tasks=0,
        warmup_tokens=0,
    )
    train_paw(config, model=folder, make_env=homes, out=tmp_path / "a", device="cpu")
    described = json.loads((tmp_path / "a" / "run.json").read_text())["described"]
    assert described["model"]["chat_template_kwargs"] == NO_THOUGHT, "brief prompts want no thought"
    assert described["config"]["chat_template_kwargs"] == {}
    with_own = paw_preset("tiny", chat_template_kwargs={"enable_thinkin": True})
    with pytest.raises(OptionError, match="enable_thinkin"):
        train_paw(with_own, model=folder, make_env=homes, out=tmp_path / "b", device="cpu")


def test_trainings_that_teach_plain_replies_refuse_thoughts():
    with pytest.raises(OptionError, match="thinking"):
        SharedTraining(agent=ReActConfig(thinking=True))
    with pytest.raises(OptionError, match="chat_template_kwargs"):
        SharedTraining(chat_template_kwargs=["enable_thinking"])
    assert SharedTraining().agent.draft_tokens == 64, "CoMap, Table 5"
    assert SharedTraining(agent=ReActConfig(draft_tokens=200)).agent.draft_tokens == 200
