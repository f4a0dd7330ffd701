"""ITP's losses against plain logits, gradients of the whole against those of its parts, TD by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.agents.itp import ITPConfig
from comap.agents.k_head import KHead
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt
from comap.facts import Delta, State
from comap.trainers.baselines.itp_samples import DepthExample
from comap.trainers.baselines.methods import ITPTraining
from comap.trainers.baselines.online import (
    OnlineITPAgent,
    OnlineRow,
    Played,
    online_rows,
    reward_of,
    td_targets,
)
from comap.trajectory import Call, Step, Trajectory

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
torch.set_num_threads(1)

learning = load(f"{Path(__file__).parents[1] / 'learning.py'}:model_folder").__globals__
scripted = load(f"{Path(__file__).parents[2] / 'agents' / 'scripted.py'}:converse_with").__globals__
ROWS = [
    DepthExample((9, 11, 8), (20, 21, 5), (True, True, True), control=(9, 11, 8, 40), depth=2),
    DepthExample((9, 12, 30, 8), (22, 5), (False, True), 0.5, control=(9, 12, 8), depth=0),
    DepthExample((9, 8), (23, 24, 5), (True, False, True), 2.0),  # a draft: there is no depth
]
ONLINE = (
    OnlineRow((9, 11, 8), (20, 21, 5), (True, True, True), (9, 11, 8, 40), 2, 0.7, 0.4),
    OnlineRow((9, 12, 30, 8), (22, 5), (True, True), (9, 12, 8), 0, -0.3, -0.9),
    OnlineRow((9, 8), (23, 5), (True, True), (9, 12, 8, 41, 6), 1, 0.1, 0.2),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = learning["model_folder"](tmp_path_factory.mktemp("models") / "tiny")
    return found


def layer(outputs: int, size: int, seed: int) -> Any:
    made = torch.nn.Linear(size, outputs, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return made


def arguments(out: Path, accumulate: int = 1) -> Any:
    from comap.trainers.arguments import Optimization, trainer_arguments

    return trainer_arguments(
        out / "checkpoints",
        Optimization(learning_rate=1e-3, schedule="constant", warmup=0.0),
        accumulate=accumulate,
        seed=0,
        logging_steps=1,
        save_steps=0,
        device="cpu",
    )


def depth_trainer(roles: Any, out: Path, rows: Any = ROWS, **told: Any) -> Any:
    from comap.trainers.baselines.depth_trainer import DepthTrainer
    from comap.trainers.plan import Batching, plan_updates

    size = roles.base("agent").config.hidden_size
    given = {"args": arguments(out), "head": layer(3, size, 1), "epochs": [rows]}
    given["plan"] = plan_updates([[len(row) for row in rows]], Batching(rows=len(rows)))
    return DepthTrainer(roles=roles, role="agent", **{**given, **told})


def gradients(trainer: Any, count: float) -> tuple[float, dict[str, Any]]:
    trainer.model.zero_grad()
    loss = trainer.compute_loss(
        trainer.model, {"place": torch.tensor([0])}, num_items_in_batch=count
    )
    loss.backward()
    own = {name: weight for name, weight in trainer.own.items() if weight.grad is not None}
    found = {name: weight.grad.clone() for name, weight in own.items()}
    heads = dict(trainer.head.named_parameters())
    found |= {
        f"head/{name}": torch.zeros_like(w) if w.grad is None else w.grad.clone()
        for name, w in heads.items()
    }
    return float(loss.detach()), found


def plain(roles: Any, tokens: tuple[int, ...]) -> tuple[Any, Any]:
    """Log-probabilities of next tokens and the last hidden states, of a plain forward pass."""
    base = roles.base("agent")
    hidden = base.base_model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    return base.get_output_embeddings()(hidden).log_softmax(-1), hidden


def nll_of(roles: Any, row: Any) -> list[Any]:
    logs, _ = plain(roles, row.prompt + row.answer)
    start = len(row.prompt) - 1
    return [
        -logs[start + place, token]
        for place, (token, flag) in enumerate(zip(row.answer, row.scored, strict=True))
        if flag
    ]


def test_the_supervised_loss_is_that_of_plain_logits(model: Path, tmp_path: Path) -> None:
    roles = learning["opened"](model, "full")
    trainer = depth_trainer(roles, tmp_path, depth_weight=0.5)
    wanted = 0.0
    with torch.no_grad():
        for row in ROWS:
            each = nll_of(roles, row)
            wanted += row.weight * float(sum(each)) / len(each)
            if row.control:
                logits = trainer.head(plain(roles, row.control)[1][-1])
                wanted -= 0.5 * float(logits.log_softmax(-1)[row.depth])
    loss, _ = gradients(trainer, 3)
    trainer.close()
    assert loss == pytest.approx(wanted / 3, rel=1e-9)


def test_its_gradient_is_the_sum_of_both(model: Path, tmp_path: Path) -> None:
    roles = learning["opened"](model, "full")

    def found(**told: Any) -> dict[str, Any]:
        trainer = depth_trainer(roles, tmp_path, **told)
        result = gradients(trainer, 3)[1]
        trainer.close()
        return result

    silent = [replace(row, scored=(False,) * len(row.answer)) for row in ROWS]
    both, actions = found(depth_weight=0.5), found(depth_weight=0.0)
    depths = found(rows=silent, depth_weight=1.0)
    assert both.keys() == actions.keys() == depths.keys()
    for name, gradient in both.items():
        torch.testing.assert_close(
            gradient, actions[name] + 0.5 * depths[name], rtol=1e-9, atol=1e-12
        )
    assert float(actions["head/weight"].abs().sum()) == 0 < float(depths["head/weight"].abs().sum())


def test_tokens_without_a_mark_have_no_loss(model: Path, tmp_path: Path) -> None:
    roles = learning["opened"](model, "full")
    other = [replace(ROWS[2], answer=(23, 24, 5)), replace(ROWS[2], answer=(23, 24, 7))]
    scored = [replace(row, scored=(True, False, False)) for row in other]
    losses = []
    for row in scored:
        trainer = depth_trainer(roles, tmp_path, rows=[row])
        losses.append(gradients(trainer, 1)[0])
        trainer.close()
    assert losses[0] == losses[1]


# -- playing online --------------------------------------------------------------------------------


def online_trainer(roles: Any, out: Path, rows: Any = ONLINE, **told: Any) -> Any:
    from comap.trainers.baselines.depth_trainer import OnlineTrainer

    size = roles.base("agent").config.hidden_size
    heads = torch.nn.ModuleDict({"depth": layer(3, size, 1), "value": layer(1, size, 2)})
    given: dict[str, Any] = {"parts": 1, "updates": 1, "args": arguments(out), "head": heads}
    play = told.pop("play", lambda update: Played(tuple(rows), 1, 0.5, 1, 0))
    return OnlineTrainer(play=play, roles=roles, role="agent", **{**given, **told})


def test_the_online_loss_is_that_of_plain_logits(model: Path, tmp_path: Path) -> None:
    roles = learning["opened"](model, "full")
    trainer = online_trainer(roles, tmp_path, value_weight=0.8, entropy_weight=0.05)
    wanted = 0.0
    with torch.no_grad():
        for row in ONLINE:
            end = plain(roles, row.control)[1][-1]
            logs = trainer.head["depth"](end).log_softmax(-1)
            wanted += row.advantage * float(sum(nll_of(roles, row)))
            wanted -= row.advantage * float(logs[row.depth])
            wanted += 0.8 * 0.5 * (row.target - float(trainer.head["value"](end))) ** 2
            wanted += 0.05 * float((logs.exp() * logs).sum())
    loss, found = gradients(trainer, 3)
    trainer.close()
    assert loss == pytest.approx(wanted / 3, rel=1e-9)
    assert all(float(found[f"head/{name}.weight"].abs().sum()) > 0 for name in ("depth", "value"))


def test_parts_of_an_update_are_one_update(model: Path, tmp_path: Path) -> None:
    learned = []
    for parts in (1, 2):
        roles = learning["opened"](model, "full")
        trainer = online_trainer(
            roles, tmp_path / str(parts), parts=parts, args=arguments(tmp_path / str(parts), parts)
        )
        log = trainer.fit()
        learned.append(roles.state("agent"))
        assert log[-1]["k"] == 1 and log[-1]["return"] == 0.5 and log[-1]["success"] == 1
    for name, weight in learned[0].items():
        torch.testing.assert_close(weight, learned[1][name], rtol=1e-9, atol=1e-12)


def test_an_update_of_nothing_but_faults_changes_nothing(model: Path, tmp_path: Path) -> None:
    roles = learning["opened"](model, "full")
    before = roles.state("agent")
    trainer = online_trainer(roles, tmp_path, play=lambda update: Played((), 2, 0.0, 0, 2))
    log = trainer.fit()
    assert log[-1]["errors"] == 1 and "entropy" not in log[-1]
    assert all(torch.equal(before[name], weight) for name, weight in roles.state("agent").items())


def test_td_targets_by_hand() -> None:
    assert td_targets([1.0, 0.0, 2.0], [0.5, -1.0, 4.0], 0.5) == [0.5, 2.0, 2.0]
    assert td_targets([], [], 0.99) == []


def step(**told: Any) -> Step:
    given: dict[str, Any] = {"reward": 0.0, "terminated": False, "truncated": False}
    given |= {
        "facts": State(),
        "delta": Delta(),
        "imagined": False,
        "notes": {"k": 2, "value": 0.5},
    }
    return Step(**{"t": 1, "action": "look", "observation": "A room.", **given, **told})


def test_rewards_by_hand() -> None:
    config = ITPTraining()
    assert reward_of(step(), config) == pytest.approx(-0.41)
    assert reward_of(step(reward=1.0, success=True), config) == pytest.approx(0.6)
    assert reward_of(step(invalid_action=True, notes={"k": 0}), config) == pytest.approx(-0.11)
    with pytest.raises(DataCorrupt, match="note 'k' of step 1"):
        reward_of(step(notes={}), config)


def episode(*steps: Step, error: str | None = None) -> Trajectory:
    return Trajectory(
        "id", "task", "train", "Wait.", "itp", "Hello.", State(), steps=tuple(steps), error=error
    )


def test_rows_are_what_was_asked_and_sampled(model: Path) -> None:
    from comap.lm import Encode, Generate, Message
    from comap.lm.chat import ChatTokenizer

    tokenizer = learning["opened"](model, "full").tokenizer
    asked = (("user", "where is the pen ?"),)
    calls = (
        Call("encode", "depth", "", messages=asked, prefix="[K]"),
        Call("generate", "foresight: action 1", "look", messages=asked, token_ids=(1,)),
        Call("generate", "act", " look", messages=asked, prefix="Action:", token_ids=(31, 5)),
    )
    one = step(calls=calls, reward=1.0)
    two = step(t=2, calls=calls, notes={"k": 0, "value": 0.2}, success=True, terminated=True)
    played = online_rows(
        [episode(one, two), episode(step(), error="EngineError: no")], tokenizer, ITPTraining()
    )
    assert (played.episodes, played.errors, len(played.rows)) == (2, 1, 2)
    messages = (Message("user", "where is the pen ?"),)
    chat = ChatTokenizer(tokenizer)
    (prompt,) = chat.prompts([Generate(messages, prefix="Action:")])
    (control,) = chat.prompts([Encode(messages, "[K]")])
    first, second = played.rows
    assert first.prompt == tuple(prompt) and first.control == tuple(control)
    assert first.answer == (31, 5) and first.scored == (True, True) and first.depth == 2
    assert first.target == pytest.approx(1.0 - 0.01 - 0.4 + 0.99 * 0.2)
    assert first.advantage == pytest.approx(first.target - 0.5)
    assert second.target == pytest.approx(0.0) and second.advantage == pytest.approx(-0.2)
    assert played.returned == pytest.approx(0.59)


def test_depths_are_drawn_as_the_head_says() -> None:
    head = KHead([[0.0]] * 3, [0.0, math.log(2.0), -50.0])
    agent = OnlineITPAgent(ITPConfig(k_source="head", k_max=2), head, KHead([[2.0]], [0.5]))
    drawn = []
    for seed in range(300):
        seen = replace(scripted["view"](), seed=seed + 1)
        k, notes = agent._read_depth(seen, [1.0], 2)
        assert notes == {"k": k, "value": 2.5} and agent._read_depth(seen, [1.0], 2)[0] == k
        drawn.append(k)
    assert drawn.count(2) == 0 and 0.58 < drawn.count(1) / 300 < 0.75
