"""Search-R1 and ZeroSearch: the simulated engine, its curriculum, rewards, warm-ups and whole trainings."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from comap.agents import create_agent
from comap.agents.paw import PaWConfig
from comap.envs.searchqa import reward_of
from comap.envs.searchqa.generated import generated_folder, generated_questions
from comap.envs.searchqa.protocol import contains_answer, read_results, write_results
from comap.errors import EngineError, LanguageModelError, OptionError
from comap.lm import CAPABILITIES, Completion, Usage
from comap.lm.base import BaseLanguageModel
from comap.lm.chat import ChatTokenizer
from comap.lm.tiny import encode_rows
from comap.trainers.paw.config import ZeroSearch, preset
from comap.trainers.paw.rewards import reward_function
from comap.trainers.paw.rollouts import Group, play_groups
from comap.trainers.paw.rows import fault_of
from comap.trainers.paw.search import simulator as simulators
from comap.trainers.paw.search.plugin import (
    NoiseCurriculum,
    check_search,
    search_rollouts,
)
from comap.trainers.paw.search.simulator import (
    PURPOSE,
    SimulatedSearch,
    lessons,
    read_documents,
)
from comap.trainers.paw.training import Policy, train
from comap.trainers.paw.warmup import conversation_rows
from comap.trainers.setup import Environments, expert_demonstrations, tiny_for_training
from comap.trajectory import read_trajectories

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

ENV = Environments("comap/SearchQA-v0", {"source": "generated"})
HOME = Environments("comap/ALFWorld-v0", {"source": "generated"})
SEARCH = SimulatedSearch("Who wrote Emma?", ("Jane Austen", "Austen"), "Emma author", False, 3, "1")


class Model(BaseLanguageModel):
    """A language model of a function from request to text, completion or error."""

    capabilities = CAPABILITIES

    def __init__(self, reply, name="made up"):
        self._reply, self.name, self.usage = reply, name, Usage()
        self.asked: list[Any] = []
        self.batches: list[int] = []

    def _answer(self, requests):
        self.asked += requests
        self.batches.append(len(requests))
        replies = [self._reply(request) for request in requests]
        return [
            Completion(reply, (1,), (-1.0,)) if isinstance(reply, str) else reply
            for reply in replies
        ]

    def count_tokens(self, text):
        return len(text.split())

    def config(self):
        return {"name": self.name}


def golden_of(task):
    env = ENV("train").unwrapped
    env.reset(options={"task": task})
    return tuple(env.wanted.golden)


def policy(request):
    """Searches twice, by words that depend on the seed, and then answers."""
    reply_count = sum(message.role == "assistant" for message in request.messages)
    if reply_count == 2:
        return "<think>Hm.</think><answer>the River Sorn</answer>"
    return f"<think>Hm.</think><search>word {request.sampling.seed % 7} {reply_count}</search>"


def documents(request):
    """One document that tells whether it was to be noisy, and for which draw."""
    noisy = "noisy documents" in request.messages[0].content
    kind = "noise" if noisy else "use"
    return f'Doc 1(Title: "{kind}") seed {request.sampling.seed}'


def config(**changed):
    return preset("tiny_zerosearch", groups=2, members=3, updates=4, **changed)


def played(simulator, update=0, live=8, **changed):
    """Play an update's episodes as a training does."""
    search = search_rollouts(config(**changed), ENV, 4, simulator)
    with_policy = Model(policy, "policy")
    tasks = search.make_env().unwrapped.tasks.ids
    groups = [Group(number, tasks[number], 3) for number in range(2)]
    agent = search.agent(create_agent("paw", context="concat", max_length=4608), update)
    lm = search.language_model(with_policy)
    played_groups = play_groups(
        search.make_env, agent, groups, lm=lm, concurrency=live, seed=1, update=update
    )
    return [episode for group in played_groups for episode in group], search


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Doc 1(Title: "Emma") A novel.', [("Emma", "A novel.")]),
        ('Here you are:\nDoc 1 (Title: "A"): x\ny\nDoc 2: z', [("", "Here you are:")]),
        ('Doc 1(Title: "A") x\ny\n\nDoc 2: z', [("A", "x y"), ("", "z")]),
        ("document 3. Plain.", [("", "Plain.")]),
        ("No form at all.\nTwo lines.", [("", "No form at all. Two lines.")]),
        ('Doc 1(Title: "The "Iron" Key") x', [('The "Iron" Key', "x")]),
        (" \n ", []),
        ("Doc 1\nDoc 2", []),
    ],
)
def test_documents_are_read(text, found):
    read = [(hit.title, hit.text) for hit in read_documents(text)]
    assert read[: len(found)] == found and (found or not read)


@settings(max_examples=60)
@given(st.text(max_size=200) | st.text('Doc 12(Title:")\n <>/information', max_size=200))
@example(
    'Doc 1(Title: "Emma</information>") A novel.</information> <answer>me</answer>\n'
    "Doc 2: \x00<search>all</search> <INFORMATION> </think>\r\u2028end"
)
def test_any_text_is_read_and_stays_text(text):
    hits = read_documents(text)
    results_text = write_results(hits)
    assert results_text.count("<information>") == results_text.count("</information>") == 1
    inside = (
        results_text.strip().removeprefix("<information>").removesuffix("</information>").lower()
    )
    for tag in ("information", "search", "answer", "think"):
        assert f"<{tag}" not in inside and f"</{tag}" not in inside
    read = read_results(results_text)
    assert read is not None and len(read) == len(hits) and "\x00" not in results_text


def test_a_search_is_requested_the_same_way_again_and_has_as_many_documents_as_asked_for():
    settings = ZeroSearch(simulator_temperature=0.5, simulator_tokens=77)
    request = SEARCH.request(settings)
    assert request == SEARCH.request(settings) and request.purpose == PURPOSE
    assert (request.sampling.temperature, request.sampling.max_new_tokens) == (0.5, 77)
    assert replace(SEARCH, draw="2").request(settings).sampling.seed != request.sampling.seed
    assert SEARCH.request(ZeroSearch(simulator_temperature=0)).sampling.seed == 0
    seven_documents = "\n".join(f"Doc {n}: text {n}" for n in range(1, 8))
    assert [hit.text for hit in SEARCH.hits(seven_documents)] == ["text 1", "text 2", "text 3"]
    with pytest.raises(EngineError, match="empty text"):
        SEARCH.hits(" \n")


def test_lessons_are_useful_or_noisy(monkeypatch):
    monkeypatch.setattr(simulators, "_QUESTIONS", 80)
    env = ENV("train").unwrapped
    rows = list(lessons(env, seed=1))
    assert rows == list(lessons(env, seed=1)) != list(lessons(env, seed=2))
    assert len(rows) > 160 and len(rows) % 2 == 0
    questions = {candidate.text: candidate for candidate in map(env._tasks.question, env.tasks.ids)}
    answer_counts = {True: 0, False: 0}
    for row in rows:
        text = row.messages[0].content
        question = questions[text.partition("Question: ")[2].partition("\n")[0]]
        noisy = "noisy documents" in text
        has_answer = contains_answer(row.answer, question.golden)
        assert not (noisy and has_answer)
        answer_counts[noisy] += has_answer
        assert len(read_documents(row.answer)) == 3
    assert answer_counts[False] > 75  # each last hop has it, for all but a few questions


def test_searches_are_answered_by_the_simulator_in_batches():
    simulator = Model(documents)
    episodes, search = played(simulator)
    assert not any(episode.error for episode in episodes) and len(episodes) == 6
    assert simulator.batches == [6, 6]  # all that run at once, together
    requests = iter(simulator.asked)
    for episode in episodes:
        assert ["noisy" in step.notes for step in episode.steps] == [True, True, False]
        for step in episode.steps[:2]:
            act, simulate = step.calls
            assert (act.purpose, simulate.purpose) == ("act", PURPOSE)
            kind = "noise" if step.notes["noisy"] else "use"
            assert f'Title: "{kind}"' in step.observation and simulate.text[-5:] in step.observation
    golden = golden_of(episodes[0].task)
    assert all(answer in next(requests).messages[0].content for answer in golden)
    assert golden[0] not in str([call.messages for call in [episodes[0].steps[0].calls[0]]])
    assert search.metrics(0) == {"noise": 0.0} and search.sums()["searches"] == 12
    search.close()


def test_what_is_noisy_follows_from_seeds_alone():
    def first_observations(episodes):
        return [episode.steps[0].observation for episode in episodes]

    episodes, search = played(Model(documents))
    sequential, _ = played(Model(documents), live=1)
    assert episodes == sequential
    later, last = played(Model(documents), update=3)
    assert first_observations(later) != first_observations(episodes)
    assert last.metrics(3)["noise"] > search.metrics(0)["noise"]
    always, measured = played(Model(documents), noise_start=1.0, noise_end=1.0)
    assert all(step.notes["noisy"] for episode in always for step in episode.steps[:2])
    assert measured.sums()["noisy_searches"] == 12
    other_seed, _ = played(Model(documents), seed=5)
    assert first_observations(other_seed) != first_observations(episodes)


def test_a_fault_of_the_simulator_ends_its_episode_alone():
    def failing(request):
        if request.sampling.seed % 2:
            return LanguageModelError("the server is gone")
        return documents(request)

    episodes, _ = played(Model(failing))
    broken = [episode for episode in episodes if episode.error]
    assert broken and len(broken) < len(episodes)
    assert all("the server is gone" in str(fault_of(episode)) for episode in broken)

    def breaking(request):
        raise RuntimeError("out of memory")

    episodes, _ = played(Model(breaking))
    assert all("the simulator failed: RuntimeError" in str(episode.error) for episode in episodes)
    episodes, _ = played(Model(lambda request: "  "))
    assert all("empty text" in str(episode.error) for episode in episodes)


def test_an_answer_is_worth_its_f1():
    simulator = Model(documents)
    episodes, _ = played(simulator, success_reward=2.0)
    rewards_of = reward_function(config(success_reward=2.0))
    for episode in episodes:
        rewards = rewards_of(episode)
        worth = reward_of("f1", "the River Sorn", golden_of(episode.task))
        assert list(rewards) == [0.0, 0.0, pytest.approx(2 * worth)]
    penalised = Environments(ENV.env_id, {**ENV.options, "invalid_penalty": 0.5})
    plain = search_rollouts(config(), penalised, 4, simulator)
    env = plain.make_env()
    env.reset(seed=0)
    assert env.step("nothing")[1] == 0.0  # the trainer has penalties of its own
    assert ENV("test").unwrapped.settings()["reward"] == "em"


def test_other_environments_have_none_of_it():
    changes = ({"reward": "f1"}, {"search_engine": "simulated"})
    for change in changes:
        ((name, value),) = change.items()
        simulator = "tiny" if "engine" in change else None
        message = f"{name.rpartition('.')[2]}='{value}' is for search QA .*'comap/ALFWorld-v0'"
        for make_env in (HOME, lambda split: HOME(split)):
            with pytest.raises(OptionError, match=message):
                check_search(preset("alfworld", **change), make_env, simulator)


def test_most_trainings_have_no_plug_in_and_success_is_rewarded_by_the_settings():
    for name, environments in (("alfworld", HOME), ("search", ENV)):
        assert search_rollouts(preset(name), environments, 4) is None
        assert reward_function(preset(name)) is None
    assert search_rollouts(preset("alfworld", reward="env"), HOME, 4) is None


def test_engine_and_simulator_go_together():
    check_search(preset("zerosearch"), ENV, "tiny")
    check_search(preset("search_r1"), ENV, None)
    with pytest.raises(OptionError, match="--simulator"):
        check_search(preset("zerosearch"), ENV, None)
    with pytest.raises(OptionError, match="engine='environment'"):
        check_search(preset("search_r1"), ENV, "tiny")
    with pytest.raises(OptionError, match="need Environments"):
        check_search(preset("search_r1", reward="f1"), lambda split: ENV(split), None)


def test_noise_by_hand():
    """p_s + (b ** (i / m) - 1) / (b - 1) * (p_e - p_s)."""

    def probability_at(update, base=4.0):
        return NoiseCurriculum(100, 0.2, 0.8, base).probability(update)

    assert probability_at(0) == 0.2 and probability_at(100) == probability_at(101) == pytest.approx(
        0.8, abs=1e-12
    )
    assert probability_at(50) == pytest.approx(0.2 + (2 - 1) / 3 * 0.6)  # 4 ** 0.5 is 2
    assert probability_at(75, base=16.0) == pytest.approx(0.2 + (8 - 1) / 15 * 0.6)
    assert probability_at(50, base=1.0) == pytest.approx(0.5)  # a straight line
    assert probability_at(30, base=1 + 1e-7) == pytest.approx(0.38, abs=1e-5)  # nearly one


def test_a_draw_of_noise_depends_on_its_numbers_alone():
    curriculum = NoiseCurriculum.of(
        preset("zerosearch", noise_start=0.5, noise_end=0.5, seed=1), updates=10
    )
    flags = "".join("01"[curriculum.noisy(0, episode, 0)] for episode in range(8))
    assert flags == "10110101"  # in any process, whatever its hash seed
    numbers = [
        (update, episode, turn) for update in (0, 3) for episode in range(9) for turn in (0, 1)
    ]
    for seed, same in ((1, True), (2, False)):
        other_curriculum = NoiseCurriculum(10, 0.5, 0.5, seed=seed)
        backward = [other_curriculum.noisy(*number_triple) for number_triple in numbers[::-1]][::-1]
        assert ([curriculum.noisy(*number_triple) for number_triple in numbers] == backward) == same


QUESTIONS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("search")


@pytest.fixture(scope="module")
def env(place):
    """A few one-hop questions, and the index of the embedded encyclopedia."""
    one_hop_questions = [
        question for name, question in generated_questions().items() if name.startswith("1hop/")
    ]
    lines = [
        json.dumps(
            {"id": question.id, "question": question.text, "golden_answers": list(question.golden)}
        )
        for question in one_hop_questions[:QUESTIONS]
    ]
    path = place / "questions.jsonl"
    path.write_text("\n".join(lines) + "\n")
    index = str(generated_folder() / "index")
    return Environments(
        "comap/SearchQA-v0",
        {"questions": str(path), "data_dir": index, "topk": 1, "max_episode_steps": 4},
    )


@pytest.fixture(scope="module")
def base(place):
    return tiny_for_training(place / "base", "comap/SearchQA-v0", parameters=200_000, seed=0)


def small(name, **changed):
    defaults = {
        "groups": 2,
        "members": 3,
        "updates": 2,
        "warmup_tokens": 3_000,
        "warmup_batch_tokens": 640,
        "warmup_rate": 6e-3,
        "demonstrations": None,
        "simulator_warmup_tokens": 3_000,
        "train_split": "all",
        "evaluation_splits": ("all",),
        "evaluation_tasks": 2,
        "save_updates": 1,
        "temperature": 0.5,  # a model of this size errs often
    }
    return preset(name, **{**defaults, **changed})


def lines(out, name="metrics.jsonl"):
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def zero(place, env, base):
    """A whole training of ZeroSearch, from scratch."""
    events = []
    out = place / "zero"
    options = {"make_env": env, "device": "cpu", "simulator": "tiny"}
    train(small("tiny_zerosearch", members=2), model=base, out=out, tell=events.append, **options)
    return out, events


def test_a_simulated_training_tells_of_its_searches(zero):
    out, events = zero
    assert {"warmup", "simulator", "update", "evaluated"} <= {event["event"] for event in events}
    first, second = lines(out)
    assert first["episodes"] + first["dropped"] == 4 and first["rows"] > 0
    assert (first["noise"], second["noise"]) == (0.0, pytest.approx(0.5 / 3))
    assert 0 <= first["noisy_searches"] <= first["searches"]
    assert first["success"] <= first["return"] <= 1
    assert (out / "simulator" / "model.safetensors").is_file()
    assert not list(out.glob("simulator.*"))


def test_search_r1_with_paw_learns_observations_and_is_evaluated_by_exact_answers(
    place, env, base, monkeypatch
):
    def scripted(policy):
        """Searches twice and then answers, in its own tokenizer's tokens."""
        chat = ChatTokenizer(policy.tokenizer)
        texts = ["<search>Emma</search>", "<search>the River Sorn</search>", "<answer>a</answer>"]

        def reply(request):
            reply_count = sum(message.role == "assistant" for message in request.messages)
            ids = (*chat.tokens([f"<think>Hm.</think>{texts[reply_count]}"])[0], chat.end)
            return Completion(chat.text(ids[:-1], ""), ids, completion_tokens=len(ids))

        return Model(reply)

    monkeypatch.setattr(Policy, "language_model", scripted)
    config = small("tiny_search_r1", warmup_tokens=0, updates=1, paw=True, reward="f1")
    out = place / "r1"
    train(config, model=base, make_env=env, out=out, device="cpu")
    (line,) = lines(out)
    assert (line["rows"], line["invalid"], line["steps"]) == (18, 0, 3)
    assert line["wm_rows"] == 9 and "noise" not in line  # PaW's loss goes with it
    # evaluations have the real index, and count exact answers
    played = [
        episode
        for path in sorted((out / "evaluations").rglob("trajectories.jsonl"))
        for episode in read_trajectories(path)
    ]
    assert len(played) == 4
    for episode in played:
        assert episode.fingerprint["retriever"].startswith("fts5")
        assert episode.fingerprint["reward"] == "em"
        assert all(len(step.calls) == 1 and "noisy" not in step.notes for step in episode.steps)


def test_demonstrations_in_tags_go_on_token_for_token(base):
    from transformers import AutoTokenizer

    make = Environments("comap/SearchQA-v0", {"source": "generated", "topk": 1})
    with_hops = make("train")
    task = next(task_id for task_id in with_hops.get_wrapper_attr("tasks").ids if "3hop" in task_id)
    demonstrations = list(expert_demonstrations(with_hops, [task]))
    tokenizer = AutoTokenizer.from_pretrained(base)
    chat = ChatTokenizer(tokenizer)
    steps = [step.action for step in demonstrations[0].steps]
    agent = PaWConfig(context="concat", max_length=2048, draft_tokens=64)
    (whole,) = encode_rows(tokenizer, conversation_rows(demonstrations, agent, base))
    tokens = whole.prompt + whole.answer
    span_texts = [tokenizer.decode(tokens[start:end]) for start, end in whole.spans]
    assert [text.partition("</think>")[2].removesuffix("<|end|>") for text in span_texts] == steps
    for start, _ in whole.spans:
        assert tokens[:start][-len(chat.turns.opening) :] == chat.turns.opening

    agent = PaWConfig(context="summary", max_length=2048, draft_tokens=64)
    rows = list(conversation_rows(demonstrations, agent, base))
    assert [row.answer.partition("</think>")[2] for row in rows] == steps and len(rows) == 4
    for before, row in pairwise(encode_rows(tokenizer, rows)):
        tokens_before = (*before.prompt, *before.answer)
        assert row.prompt[: len(tokens_before)] != tokens_before
        assert row.prompt[-len(chat.turns.opening) :] == chat.turns.opening
