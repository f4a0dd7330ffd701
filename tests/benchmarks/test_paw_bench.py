"""`comap bench paw`: its arms, what it reads from runs, its statistics, and a smallest real run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("trl")

from comap.benchmarks.paw_bench_arms import (
    ARMS,
    VARIED,
    arm_of,
    training_of,
)
from comap.benchmarks.paw_bench_pairs import over_seeds, paired, share_won
from comap.benchmarks.paw_bench_result import collect
from comap.benchmarks.paw_bench_run import read_run
from comap.benchmarks.paw_bench_starts import PaWBench
from comap.benchmarks.paw_bench_training import (
    CPU,
    has_ended,
    run_arm,
    take_over_first_evaluation,
)
from comap.benchmarks.readme_paw import paw_section, paw_text
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, OptionError
from comap.trainers.paw.journal import EVALUATIONS, METRICS
from comap.trainers.playing import played

KIT = load(f"{Path(__file__).with_name('paw_bench_kit.py')}:KIT")
ENV, REAL, START, UPDATES = KIT.ENV, KIT.REAL, KIT.START, KIT.UPDATES
by_name, command, evaluated, made_up = KIT.by_name, KIT.command, KIT.evaluated, KIT.made_up
parsed, written = KIT.parsed, KIT.written

# -- arms ----------------------------------------------------------------------------------------


def test_arms_differ_in_what_they_are_named_after_and_in_nothing_else() -> None:
    told = [training_of(arm, 0).describe() for arm in ARMS]
    assert len({json.dumps(one) for one in told}) == len({arm.name for arm in ARMS}) == len(ARMS)
    common = [{name: one[name] for name in one if name not in VARIED} for one in told]
    assert all(one == common[0] for one in common)
    for arm in ARMS:
        assert training_of(arm, 3).seed == 3
        assert all(training_of(arm_of(other), 0) for other in arm.compared)


def test_each_update_has_as_many_episodes_and_plays_them_as_small_agents_do() -> None:
    for arm in ARMS:
        config = training_of(arm, 0)
        assert config.groups * config.members == 128
        assert (config.members == 1) == (config.algorithm == "ppo")
        assert (config.prompts, config.state_text, config.form) == ("brief", "belief", "given")
        assert (config.old_logprobs, config.temperature) == ("sampled", 1.0)
        assert [n for n in range(config.updates or 0) if config.evaluates_after(n)] == [0]
        assert config.evaluation_tasks is None and config.warmup_tokens == 0
    assert training_of(arm_of("ppo"), 0, {"groups": 2, "members": 3}).groups == 6
    assert arm_of("grpo").compared == () and arm_of("rloo+paw").compared == ("rloo",)


def test_an_arm_that_there_is_not_is_told() -> None:
    with pytest.raises(OptionError, match="there is no arm 'grpo-paw'; did you mean 'grpo"):
        arm_of("grpo-paw")


# -- statistics ----------------------------------------------------------------------------------


def test_differences_are_those_of_hand() -> None:
    told = paired(["1111", "1010"], ["1000", "1011"])
    assert (told["mean"], told["gained"], told["lost"], told["tasks"]) == (0.25, 3, 1, 4)
    assert told["seeds"]["each"] == [0.75, -0.25]
    sd = 0.5**0.5
    assert told["seeds"]["sd"] == pytest.approx(sd, abs=1e-4)
    assert told["seeds"]["high"] == pytest.approx(0.25 + 12.706 * sd / 2**0.5, abs=1e-3)
    assert told["low"] < told["mean"] < told["high"]


def test_plays_that_were_won_count_as_shares() -> None:
    told = paired(["4400", "4300"], ["0400", "4100"], plays=4)
    assert (told["mean"], told["gained"], told["lost"]) == (0.1875, 2, 0)
    assert share_won("4400", 4)["rate"] == 0.5 and share_won("11", 1)["low"] > 0.3
    narrow, wide = share_won("2" * 20, 4), share_won("40" * 10, 4)
    assert narrow["low"] == narrow["high"] == 0.5 and wide["low"] < 0.4


_TASKS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=5, max_size=5)


@settings(max_examples=15, deadline=None)
@given(st.lists(_TASKS, min_size=1, max_size=3))
def test_a_difference_is_that_of_rates_and_turns_round(
    pairs: list[list[tuple[bool, bool]]],
) -> None:
    mine, other = (["".join("01"[p[side]] for p in seed) for seed in pairs] for side in (0, 1))
    told, back = paired(mine, other), paired(other, mine)
    rates = ["".join(some).count("1") / (5 * len(pairs)) for some in (mine, other)]
    assert told["mean"] == pytest.approx(rates[0] - rates[1], abs=1e-4)
    assert told["mean"] == -back["mean"] and told["gained"] == back["lost"]
    assert told["low"] <= told["mean"] <= told["high"]
    assert told == paired(mine, other)
    assert paired(mine, mine)["low"] == paired(mine, mine)["high"] == 0


def test_tasks_are_drawn_with_all_their_seeds() -> None:
    once, thrice = paired(["1100"], ["0000"]), paired(["1100"] * 3, ["0000"] * 3)
    assert (once["low"], once["high"]) == (thrice["low"], thrice["high"])  # not as if 12 tasks


def test_few_seeds_make_wide_intervals() -> None:
    assert over_seeds([1.0, None, 2.0, 3.0])["high"] == pytest.approx(2 + 4.303 / 3**0.5, abs=1e-3)
    assert over_seeds([])["mean"] is None
    many = over_seeds([0.0, 1.0] * 50)
    assert many["high"] - many["mean"] == pytest.approx(1.96 * many["sd"] / 10, abs=1e-3)


# -- runs and results ----------------------------------------------------------------------------


def test_a_run_is_read_as_it_was(tmp_path: Path) -> None:
    folder = made_up(PaWBench(out=str(tmp_path)), "grpo+paw", 0, ("11", "10"))
    lines = [(1, None, 9.0), (0, "valid_seen", 1.0), (1, None, 2.0), (2, None, 2.5)]
    told = [{"update": at, "split": split, "cpu_seconds": s} for at, split, s in lines]
    (folder / CPU).write_text("".join(json.dumps(line) + "\n" for line in told))
    one = read_run(folder, 0)
    assert one is not None
    assert one["won"]["final"] == {"valid_seen": "11", "valid_unseen": "10"}
    assert one["success"]["start"]["all"]["rate"] == 0.25
    final = one["success"]["final"]["all"]
    assert (final["n"], final["rate"]) == (4, 0.75) and final["low"] < 0.75 < final["high"]
    assert one["curve"]["success"] == [0.25, 0.75] and one["curve"]["wm_lambda"] == [0.1235] * 2
    assert "kl" not in one["curve"] and "value_loss" not in one["curve"]
    assert one["training_last"] == 0.5 and one["rows"] == 20
    assert one["seconds"]["seconds_update"] == 3.0
    assert one["cpu_seconds"] == {
        "updates": 4.5,
        "evaluation": 1.0,
    }  # what a kill undid is not told


def test_damaged_cpu_times_are_told(tmp_path: Path) -> None:
    folder = made_up(PaWBench(out=str(tmp_path)), "grpo", 0, ("11", "10"))
    (folder / CPU).write_text("nothing\n")
    with pytest.raises(DataCorrupt, match="expected CPU times in"):
        read_run(folder, 0)


@pytest.mark.parametrize("name", [METRICS, EVALUATIONS])
def test_a_run_that_was_interrupted_is_left_out(tmp_path: Path, name: str) -> None:
    bench = PaWBench(out=str(tmp_path))
    folder = made_up(bench, "grpo", 0, ("11", "10"))
    assert has_ended(folder)
    lines = (folder / name).read_text().splitlines(keepends=True)
    (folder / name).write_text("".join(lines[:-1]))
    assert not has_ended(folder) and collect(bench, [0])["arms"] == []
    (folder / name).write_text("".join(lines[:-1]) + lines[-1][:-9])  # killed while writing
    assert not has_ended(folder)


def test_results_compare_arms_on_the_seeds_of_both(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path))
    for seed in (0, 1):
        made_up(bench, "grpo", seed, ("00", "10"))
    made_up(bench, "grpo+paw", 1, ("11", "10"), successes=(0.5, 1.0))
    made_up(bench, "grpo+paw-ce", 1, ("01", "10"))
    made_up(bench, "rloo+paw", 1, ("01", "10"))
    for arm, spent in (("grpo", 6.0), ("grpo+paw", 9.0)):
        line = {"update": 1, "split": None, "cpu_seconds": spent}
        (bench.place_of(arm, 1) / CPU).write_text(json.dumps(line) + "\n")
    arms = by_name(collect(bench, [0, 1, 2]))
    assert list(arms) == ["grpo", "grpo+paw", "rloo+paw", "grpo+paw-ce"]
    assert arms["grpo"]["over_seeds"]["success.final.all"]["n"] == 2
    assert arms["grpo+paw"]["gain"]["seeds"]["n"] == 1
    assert arms["grpo"]["differences"] == arms["rloo+paw"]["differences"] == {}
    (told,) = arms["grpo+paw"]["differences"].values()
    assert (told["of_seeds"], told["mean"], told["gained"]) == ([1], 0.5, 2)
    assert told["training_last"]["mean"] == 0.25
    assert told["update_cpu"]["mean"] == 1.5  # 9 s against 6 s
    assert arms["grpo+paw-ce"]["differences"]["grpo+paw"]["mean"] == -0.25
    assert arms["grpo+paw"]["settings"]["paw"] and not arms["grpo"]["settings"]["paw"]


def test_other_starts_and_other_tasks_are_not_compared(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path))
    for seed in (0, 1):
        made_up(bench, "grpo", seed, ("00", "10"))
    made_up(bench, "grpo+paw", 0, ("11", "10"), start={**START, "sha256": "cd" * 32})
    made_up(bench, "grpo+paw", 1, ("11", "10"), names="other")
    result = collect(bench, [0, 1])
    assert by_name(result)["grpo+paw"]["differences"] == {} and len(result["starts"]) == 2


def test_an_earlier_result_is_kept_but_for_what_is_found_anew(tmp_path: Path) -> None:
    first, second = (PaWBench(out=str(tmp_path / name)) for name in "ab")
    made_up(first, "grpo", 0, ("00", "00"))
    made_up(first, "grpo", 1, ("00", "00"))
    made_up(first, "gigpo", 0, ("00", "00"))
    made_up(second, "grpo", 1, ("11", "11"))
    result = json.loads(json.dumps(collect(second, [0, 1], collect(first, [0, 1]))))
    arms = by_name(result)
    assert list(arms) == ["grpo", "gigpo"]
    rates = [one["success"]["final"]["all"]["rate"] for one in arms["grpo"]["seeds"]]
    assert [one["seed"] for one in arms["grpo"]["seeds"]] == [0, 1] and rates == [0.0, 1.0]
    again = collect(second, [0, 1], result)
    for changing in ("date", "hardware", "versions"):
        assert again.pop(changing) and result.pop(changing)
    assert json.loads(json.dumps(again)) == result


def test_runs_with_other_settings_are_not_mixed(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path))
    made_up(bench, "grpo", 0, ("00", "00"))
    before = collect(bench, [0])
    made_up(bench, "grpo+paw", 0, ("00", "00"), learning_rate=5e-4)
    with pytest.raises(OptionError, match=r"found learning_rate 0\.0001 and 0\.0005; give --out"):
        collect(bench, [0])
    alone = PaWBench(out=str(tmp_path / "alone"))
    made_up(alone, "gigpo", 0, ("00", "00"), kl=0.5)
    with pytest.raises(OptionError, match=r"found kl 0\.01 and 0\.5"):
        collect(alone, [0], before)


def test_how_a_run_was_split_up_does_not_matter(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path))
    made_up(bench, "grpo", 0, ("11", "10"))
    before = collect(bench, [0])
    before["settings"]["micro_batch_tokens"] = 8192  # as older results have it
    made_up(bench, "grpo+paw", 0, ("11", "11"), micro_batch_tokens=2048, live=7)
    result = collect(bench, [0], before)
    assert [arm["arm"] for arm in result["arms"]] == ["grpo", "grpo+paw"]
    assert not {"live", "micro_batch_tokens"} & result["settings"].keys()


def test_sparse_rewards_lie_apart(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path))
    made_up(bench.in_case(True), "grpo", 0, ("01", "00"), learning_rate=5e-4)  # may differ there
    assert collect(bench, [0])["arms"] == []
    made_up(bench, "grpo", 0, ("11", "11"))
    result = collect(bench.in_case(True), [0])
    rates = [
        by_name(case)["grpo"]["over_seeds"]["success.final.all"]["mean"]
        for case in (result, result["sparse"])
    ]
    assert rates == [1.0, 0.25]
    kept = collect(PaWBench(out=str(tmp_path / "none")), [0], result)
    assert by_name(kept["sparse"])["grpo"]["seeds"]


def test_the_first_evaluation_is_taken_over_from_the_same_policy_alone(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path))
    folder = made_up(bench, "grpo", 0, ("11", "11"))
    known = json.loads((folder / "run.json").read_bytes())["described"]
    paw = training_of(arm_of("ppo+paw"), 0, {"updates": UPDATES})
    cases = {
        "same": ({**known, "arm": "ppo+paw", "config": paw.describe()}, 2),
        "hotter": ({**known, "config": replace(paw, evaluation_temperature=1.0).describe()}, 0),
        "other": ({**known, "model": {**START, "sha256": "cd"}, "config": paw.describe()}, 0),
        "seed": ({**known, "config": replace(paw, seed=1).describe()}, 0),
    }
    for name, (described, wanted) in cases.items():
        out = bench.runs / f"{name}-new"
        take_over_first_evaluation(out, described)
        path = out / EVALUATIONS
        lines = path.read_text().splitlines() if path.exists() else []
        assert [json.loads(line)["update"] for line in lines] == [0] * wanted, name


# -- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paw")
    assert command("--out", str(out), *REAL) == 0
    return out


def test_a_real_run_gives_a_result_of_all_its_arms(real: Path) -> None:
    result = json.loads((real / "result.json").read_bytes())
    arms = by_name(result)
    assert list(arms) == ["grpo", "grpo+paw"] and result["settings"]["updates"] == 2
    plain, paw = (arms[name]["seeds"][0] for name in arms)
    assert plain["start"] == paw["start"] and plain["tasks"] == paw["tasks"]
    assert plain["curve"]["success"][0] == paw["curve"]["success"][0]  # the same first rollouts
    assert "wm_loss" in paw["curve"] and "wm_loss" not in plain["curve"]
    assert paw["cpu_seconds"]["updates"] > 0 and paw["success"]["final"]["all"]["n"] == 2
    assert paw["ran"]["hardware"]["gpus"] is not None and "torch" in paw["ran"]["versions"]
    assert arms["grpo+paw"]["differences"]["grpo"]["of_seeds"] == [0]
    assert arms["grpo"]["gain"]["tasks"] == 2
    assert result["versions"]["trl"]


def test_what_a_policy_wins_at_first_is_measured_once_a_seed(real: Path) -> None:
    first, second = (real / "arms" / f"{name}-0" for name in ("grpo", "grpo+paw"))
    assert list(first.glob("evaluations/0000-*")) and not list(second.glob("evaluations/0000-*"))
    lines = [(folder / EVALUATIONS).read_text().splitlines()[:2] for folder in (first, second)]
    assert lines[0] == lines[1]


def test_the_command_goes_on_with_what_is_missing(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in real.rglob(METRICS)}
    result, plot = tmp_path / "result.json", tmp_path / "plot.svg"
    words = ["--out", str(real), *REAL, "--result", str(result)]
    assert command(*words, "--plot", str(plot)) == 0
    assert {path: path.stat().st_mtime_ns for path in real.rglob(METRICS)} == before
    assert "| GRPO+PaW | 1 |" in capsys.readouterr().out and "<svg" in plot.read_text()
    assert by_name(json.loads(result.read_bytes())).keys() == {"grpo", "grpo+paw"}


def test_a_run_that_was_stopped_goes_on_to_the_same_end(real: Path, tmp_path: Path) -> None:
    options = json.loads((real / "result.json").read_bytes())["settings"]
    same = ("updates", "max_episode_steps", "evaluation_tasks")
    bench = PaWBench(
        out=str(tmp_path),
        starts=str(real / "starts"),
        warmup_tokens=2000,
        settings={name: options[name] for name in same}
        | {"groups": 2, "members": 2, "save_updates": 1},
        device="cpu",
    )

    def stop(event: Mapping[str, Any]) -> None:
        if event["event"] == "update" and event["update"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_arm(arm_of("grpo+paw"), 0, bench, stop)
    assert collect(bench, [0])["arms"] == []
    again = read_run(run_arm(arm_of("grpo+paw"), 0, bench), 0)
    straight = read_run(real / "arms" / "grpo+paw-0", 0)
    assert again is not None and straight is not None and again["sessions"] == 2
    for name in ("won", "success", "training_last", "rows"):
        assert again[name] == straight[name]
    assert again["curve"]["wm_loss"] == straight["curve"]["wm_loss"]


def test_a_run_may_be_ended_early_and_goes_on_when_more_is_asked_for(
    real: Path, tmp_path: Path
) -> None:
    options = json.loads((real / "result.json").read_bytes())["settings"]
    same = ("updates", "max_episode_steps", "evaluation_tasks")
    asked = {name: options[name] for name in same} | {"groups": 2, "members": 2}
    bench = PaWBench(
        out=str(tmp_path),
        starts=str(real / "starts"),
        warmup_tokens=2000,
        settings=asked | {"max_updates": 1},
        device="cpu",
    )
    run_arm(arm_of("grpo"), 0, bench)
    folder = run_arm(arm_of("grpo+paw"), 0, bench)
    early = read_run(folder, 0)
    assert early is not None and early["stopped_after"] == 1
    assert len(early["curve"]["success"]) == 1 and "final" in early["success"]
    whole = replace(bench, settings=asked)
    run_arm(arm_of("grpo"), 0, whole)
    result = collect(whole, [0])
    arms = by_name(result)
    assert [arms[name]["seeds"][0]["stopped_after"] for name in arms] == [None, 1]
    assert arms["grpo+paw"]["differences"] == {}  # after other numbers of updates
    table = paw_section(result).splitlines()
    assert "| GRPO | 1 |" in table[2] and "| GRPO+PaW | 1 (stopped after 1) |" in table[3]
    assert "not compared" in paw_text(result, "today")
    ended = read_run(run_arm(arm_of("grpo+paw"), 0, whole), 0)
    straight = read_run(real / "arms" / "grpo+paw-0", 0)
    assert ended is not None and straight is not None and ended["stopped_after"] is None
    assert ended["curve"]["wm_loss"] == straight["curve"]["wm_loss"]
    assert ended["won"] == straight["won"]
    assert run_arm(arm_of("grpo+paw"), 0, bench) == folder  # and what was done stays
    assert has_ended(folder) and read_run(folder, 0) == ended


def test_further_plays_are_added_where_both_policies_have_them(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path), settings={"updates": UPDATES})
    final = made_up(bench, "grpo", 0, ("11", "10")) / "plays"
    start = tmp_path / "plays" / "start-0"
    for number, won in ((1, ("10", "11")), (2, ("10", "01"))):
        for split, digits in zip(("valid_seen", "valid_unseen"), won, strict=True):
            written(final, split, number, digits)
    (one,) = by_name(collect(bench, [0]))["grpo"]["seeds"]
    assert one["plays"] == 1, "the start was not played again"
    for split in ("valid_seen", "valid_unseen"):
        written(start, split, 1, "01")
    arm = by_name(collect(bench, [0]))["grpo"]
    (one,) = arm["seeds"]
    assert one["plays"] == 2 and one["errors"] == 4
    assert one["won"]["final"] == {"valid_seen": "21", "valid_unseen": "21"}
    assert one["won"]["start"] == {"valid_seen": "01", "valid_unseen": "11"}
    assert one["success"]["final"]["all"]["rate"] == 0.75
    assert arm["gain"]["mean"] == pytest.approx((6 - 3) / 8, abs=1e-4)


def test_further_plays_of_other_tasks_are_refused(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path), settings={"updates": UPDATES})
    final = made_up(bench, "grpo", 0, ("11", "10")) / "plays"
    for place in (final, tmp_path / "plays" / "start-0"):
        for split in ("valid_seen", "valid_unseen"):
            written(place, split, 1, "111")
    with pytest.raises(DataCorrupt, match="further plays of"):
        collect(bench, [0])
    (final / "valid_seen-1" / "won.json").write_text("{")
    with pytest.raises(DataCorrupt, match="remove its folder and play again"):
        collect(bench, [0])


def test_plays_are_real_and_each_is_another(real: Path) -> None:
    """Both policies are played again, the start once for both arms, and with seeds of their own."""
    plays = {place.relative_to(real).as_posix() for place in real.rglob("won.json")}
    ends = ("plays/start-0", "arms/grpo-0/plays", "arms/grpo+paw-0/plays")
    splits = ("valid_seen", "valid_unseen")
    assert plays == {f"{end}/{split}-1/won.json" for end in ends for split in splits}
    first = real / "arms" / "grpo-0" / "evaluations" / "0000-valid_seen-0"
    again = real / ends[0] / "valid_seen-1"
    (one,), (two,) = (played(place) for place in (first, again))
    assert one.task == two.task
    assert [step.action for step in one.steps] != [step.action for step in two.steps]
    result = json.loads((real / "result.json").read_bytes())
    assert [one["plays"] for arm in result["arms"] for one in arm["seeds"]] == [2, 2]


def test_plays_of_another_policy_are_refused(real: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(real, out)
    path = out / "plays" / "start-0" / "valid_seen-1" / "won.json"
    told = json.loads(path.read_bytes())
    told["of"]["weights"] = "0" * 64
    path.write_text(json.dumps(told))
    with pytest.raises(OptionError, match=r"others \(weights\).*remove that folder"):
        command("--out", str(out), *REAL, "--result", str(tmp_path / "result.json"))


def test_mistakes_are_told_before_anything_is_done(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(OptionError, match="there is no arm 'everything'"):
        command("--out", out, "--arms", "everything")
    with pytest.raises(OptionError, match="found no --data-dir"):
        command("--out", out, "--demos", "demos.jsonl")
    with pytest.raises(OptionError, match="learning_rate"):
        command("--out", out, "--learning-rate", "-1")
    with pytest.raises(OptionError, match="--plays must be 1 to 9, found 10"):
        command("--out", out, "--plays", "10")
    assert not Path(out).exists()


def test_collecting_runs_nothing(tmp_path: Path) -> None:
    bench = PaWBench(out=str(tmp_path))
    made_up(bench, "gigpo", 4, ("10", "10"))
    assert command("--out", str(tmp_path), "--seeds", "4", "--collect") == 0
    assert list(by_name(json.loads((tmp_path / "result.json").read_bytes()))) == ["gigpo"]
