"""`comap bench paw` on WebShop, and what differs between environments."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest

pytest.importorskip("trl")

from comap.benchmarks import paw_bench
from comap.benchmarks.coevolution_models import shown_by_experts
from comap.benchmarks.paw_bench_arms import (
    ALFWORLD,
    ARMS,
    arm_of,
    settings_on,
    training_of,
    warmup_on,
)
from comap.benchmarks.paw_bench_plays import further_plays
from comap.benchmarks.paw_bench_result import collect
from comap.benchmarks.paw_bench_run import read_run
from comap.benchmarks.paw_bench_starts import PaWBench
from comap.benchmarks.readme_paw import paw_text
from comap.envs.conformance.transcripts import load
from comap.envs.webshop.embedded import embedded_catalog
from comap.envs.webshop.goals import legacy_order
from comap.trainers.paw.journal import EVALUATIONS
from comap.trainers.policy_samples import is_shown

KIT = load(f"{Path(__file__).with_name('paw_bench_kit.py')}:KIT")
REAL, UPDATES = KIT.REAL, KIT.UPDATES
by_name, command, made_up, parsed, written = (
    KIT.by_name,
    KIT.command,
    KIT.made_up,
    KIT.parsed,
    KIT.written,
)

WEBSHOP = "comap/WebShop-v0"


def test_arms_on_webshop_are_those_of_the_paper() -> None:
    """METHODS.md 2.6 and 2.7."""
    for arm in ARMS:
        config = training_of(arm, 0, settings_on(WEBSHOP))
        assert (config.max_episode_steps, config.mini_batch_rows) == (15, 64)
        assert (config.success_reward, config.highest_return) == (10.0, 10.0)
        assert (config.reward, config.invalid_penalty) == ("success", 0.1)
        assert config.evaluation_splits == ("legacy-test",) and config.observation_tokens == 1024
        assert config.train_split == "legacy-train-500"
        assert (config.alpha, config.rho) == (
            arm.changes.get("alpha", 0.75),
            arm.changes.get("rho", 0.2),
        )


def test_alfworld_is_as_it_was() -> None:
    bench = paw_bench._bench(parsed())
    for arm in ARMS:
        assert training_of(arm, 1, bench.settings) == training_of(arm, 1)
    assert bench.env_id == ALFWORLD and bench.tokens == 8_000_000
    warm = bench.warm()
    assert (warm.env_id, warm.expert, warm.prompt_share) == (ALFWORLD, "explore", 0.0)
    assert (warm.tasks, warm.recoveries, warm.parameters) == (3500, 800, 500_000)
    assert bench.environments(30).options == {"source": "generated", "max_episode_steps": 30}
    official = paw_bench._bench(parsed("--data-dir", "games")).environments(30)
    assert official.options == {"source": "official", "max_episode_steps": 30, "data_dir": "games"}


def test_what_is_not_given_is_as_usual_for_the_environment() -> None:
    bench = paw_bench._bench(parsed("--env", WEBSHOP))
    assert bench.settings == settings_on(WEBSHOP)
    usual = warmup_on(WEBSHOP)
    assert (bench.warmup_tokens, bench.warm().env_id) == (usual["warmup_tokens"], WEBSHOP)
    assert bench.warm().expert is None and bench.warm().parameters == usual["warmup_parameters"]
    assert bench.environments(15).options == {"source": "generated", "max_episode_steps": 15}
    words = ("--mini-batch-rows", "0", "--warmup-tokens", "5", "--max-episode-steps", "9")
    bench = paw_bench._bench(parsed("--env", WEBSHOP, *words))
    assert bench.settings["mini_batch_rows"] is None and bench.tokens == 5
    assert training_of(arm_of("grpo"), 0, bench.settings).max_episode_steps == 9
    assert bench.warm().prompt_share == usual["warmup_prompt_share"] > 0


def test_experts_show_tasks_of_the_split_that_arms_train_on(tmp_path: Path) -> None:
    """WebShop's own shuffle: its first 500 goals are the test, all others are trained on."""
    bench = paw_bench._bench(parsed("--env", WEBSHOP))
    warm = replace(bench.warm(), out=str(tmp_path), tasks=6, recoveries=3)
    shown = shown_by_experts(warm)
    first = {
        f"generated/synthetic/{n}"
        for n in legacy_order(embedded_catalog(0).goals("synthetic"))[:500]
    }
    assert len(shown) >= 6 and first.isdisjoint({one.task for one in shown})
    assert sum(one.success and all(map(is_shown, one.steps)) for one in shown) == 6
    with closing(bench.environments(15)("legacy-test")) as env:
        assert set(env.get_wrapper_attr("tasks").ids) == first


def test_the_help_tells_what_is_usual_where(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    told = " ".join(capsys.readouterr().out.split())
    assert "step limit of episodes (default: 30; on WebShop 15)" in told
    assert "tasks of an update (default: 16)" in told


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shop")
    words = [*REAL, "--updates", "1", "--evaluation-tasks", "2"]
    assert command("--out", str(out), "--env", WEBSHOP, *words) == 0
    return out


def test_a_real_run_on_webshop_tells_success_and_score(shop: Path) -> None:
    result = json.loads((shop / "result.json").read_bytes())
    assert result["benchmark"].endswith("small policies on WebShop")
    assert result["env"]["id"] == WEBSHOP and result["env"]["options"]["source"] == "generated"
    assert result["settings"]["evaluation_splits"] == ["legacy-test"]
    arms = by_name(result)
    assert list(arms) == ["grpo", "grpo+paw"]
    for arm in arms.values():
        (one,) = arm["seeds"]
        assert one["plays"] == 2 and one["success"]["final"]["legacy-test"]["n"] == 2
        for end in ("start", "final"):
            assert 0 <= one["success"][end]["legacy-test"]["rate"] <= one["score"][end]["all"] <= 1
            assert arm["over_seeds"][f"score.{end}.all"]["n"] == 1
    assert arms["grpo+paw"]["differences"]["grpo"]["score"]["n"] == 1
    for path in shop.rglob("won.json"):
        assert 0 <= json.loads(path.read_bytes())["score"] <= 1
    assert "| GRPO+PaW | 1 |" in paw_text(result, "today")


def test_scores_are_means_of_all_plays(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path), settings={"updates": UPDATES})
    folder = made_up(bench, "grpo", 0, ("11", "10"))
    one = read_run(folder, 0)
    assert one is not None and one["score"] == {"start": None, "final": None}  # nobody told them
    lines = [json.loads(line) for line in (folder / EVALUATIONS).read_text().splitlines()]
    scores = iter((0.1, 0.2, 0.9, 0.5))
    text = "".join(json.dumps({**line, "score": next(scores)}) + "\n" for line in lines)
    (folder / EVALUATIONS).write_text(text)
    for place in (folder / "plays", tmp_path / "plays" / "start-0"):
        for split, score in (("valid_seen", 0.3), ("valid_unseen", 0.7)):
            written(place, split, 1, "10")
            path = place / f"{split}-1" / "won.json"
            path.write_text(json.dumps({**json.loads(path.read_bytes()), "score": score}))
    one = read_run(folder, 0, further_plays(bench, "grpo", 0))
    assert one is not None
    assert one["score"]["start"] == {"valid_seen": 0.2, "valid_unseen": 0.45, "all": 0.325}
    assert one["score"]["final"] == {"valid_seen": 0.6, "valid_unseen": 0.6, "all": 0.6}
    (arm,) = collect(bench, [0])["arms"]
    assert arm["over_seeds"]["score.final.all"]["mean"] == 0.6
    for path in folder.rglob("won.json"):  # as older versions wrote it
        told = json.loads(path.read_bytes())
        del told["score"]
        path.write_text(json.dumps(told))
    one = read_run(folder, 0, further_plays(bench, "grpo", 0))
    assert one is not None and one["score"]["final"] is None and one["plays"] == 2


def test_an_environment_that_there_is_not_is_told(tmp_path: Path) -> None:
    with pytest.raises(gymnasium.error.Error):
        command("--out", str(tmp_path / "out"), "--env", "comap/Nowhere-v0")
    assert not (tmp_path / "out").exists()
