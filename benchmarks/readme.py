"""The README's numbers, from the committed results: ``python -m comap.benchmarks.readme``."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import DataCorrupt
from .readme_capacity import capacity_section
from .readme_environments import environments_section
from .readme_noise import noise_section
from .readme_overhead import overhead_section
from .readme_paw import paw_text
from .readme_reliability import reliability_section
from .readme_scienceworld import scienceworld_section
from .readme_searchqa import searchqa_section
from .readme_selective import opening_section, selective_section
from .readme_serving import serving_section
from .readme_tools import expert_line, tools_section
from .readme_viewer import viewer_section
from .readme_webshop import webshop_section
from .trained import trained_section

__all__ = ["SECTIONS", "result", "update"]


def result(name: str) -> dict[str, Any]:
    """Return a committed result.

    Args:
        name: Its file's name, without ``.json``.

    Example:
        >>> result("alfworld_parity")["benchmark"]
        'parity'
    """
    text = files(__package__).joinpath(f"results/{name}.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _on(record: Mapping[str, Any]) -> str:
    """Return when and on what a result was measured."""
    hardware, versions = record["hardware"], record["versions"]
    cores = f"{hardware['cores']} cores"
    python = f"Python {versions['python']}"
    return f"{record['date'][:10]}, {hardware['cpu']}, {cores}, {python}"


def _speed() -> str:
    record = result("alfworld_speed")
    ours, theirs, ratios = (record[key] for key in ("ours", "theirs", "ratios"))
    titles = {
        "step": "step, texts not seen before",
        "step_seen": "step, texts seen before",
        "same_reset": "reset, same game",
        "next_reset": "load and reset, next game",
    }
    lines = ["| CPU time | comap | TextWorld | ratio | over games: min, median, max |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, title in titles.items():
        mine, other = ours["mean"][name], theirs["mean"][name]
        over = ratios["over_games"][name]
        spread = ", ".join(f"{over[key]:,.0f}" for key in ("min", "median", "max"))
        ratio = ratios["of_totals"][name]
        pair = f"{mine * 1e6:,.1f} µs | {other * 1e3:,.1f} ms"
        lines.append(f"| {title} | {pair} | {ratio:,.0f} | {spread} |")
    once, parts, memory = record["first_pass"], record["step_parts"], record["memory"]
    lines += [
        "",
        f"{record['games']} games of {record['split']}, {record['steps']:,} steps, both engines in "
        f"one process in turns; same answers in {record['games_that_agree']} of "
        f"{record['games']} games. A step of ours includes admissible actions, belief facts, delta, "
        "goal check and Gymnasium's wrappers. Of a step, the engine and the canonicalizer cost "
        f"{once['engine'] * 1e6:.1f} and {once['canonicalizer'] * 1e6:.1f} µs when each game is played "
        f"once, {parts['engine'] * 1e6:.1f} and {parts['canonicalizer_seen'] * 1e6:.1f} µs when it is "
        "played again; with every text forgotten before each game the canonicalizer costs "
        f"{parts['canonicalizer'] * 1e6:.1f} µs. Memory grows by "
        f"{memory['growth_in_second_half'] / 2**20:+.1f} MiB in the second half of "
        f"{memory['resets']} resets. ({_on(record)}, `comap bench speed alfworld --peer textworld`)",
    ]
    return "\n".join(lines)


def _parity() -> str:
    record = result("alfworld_parity")
    states, demos = record["traces_dev"], record["demonstrations"]
    walks = record["walkthroughs"]
    experts = result("alfworld_experts")
    total = experts["total"]
    won, games = sum(w["won"] for w in walks.values()), sum(w["games"] for w in walks.values())
    dead = total.get("plan_after_random: proved dead ends", 0)
    lines = ["| checked against the original | matches |", "|---|---:|"]
    lines.append(
        f"| recorded states of {states['games']} games, every field "
        f"| {states['matching']:,} of {states['states']:,} |"
    )
    lines.append(f"| official walkthroughs, valid at every step and won | {won:,} of {games:,} |")
    lines.append(
        f"| texts of {demos['games']:,} official demonstrations "
        f"| {demos['matching']:,} of {demos['states']:,} |"
    )
    lines.append(
        f"| games won by the expert within 50 steps | {total['plan: won']:,} of {games:,} |"
    )
    lines.append(
        f"| the same after {experts['random_actions']} random actions | "
        f"{total['plan_after_random: won']:,} of {games - dead:,} |"
    )
    lines.append(
        "| games won by the expert that knows only what it saw | "
        f"{total['explore: won']:,} of {games:,} |"
    )
    lines.append(
        f"| beliefs that are true in the engine | {total['beliefs'] - total['false beliefs']:,} of "
        f"{total['beliefs']:,} |"
    )
    lines += [
        "",
        f"After random actions {dead} more games are dead ends: the agent holds a thing that fits into "
        "no receptacle of the room, so that nobody can win them. "
        f"({_on(record)}, `comap bench parity alfworld`, `comap bench experts alfworld`)",
    ]
    return "\n".join(lines)


def _models() -> str:
    record = result("alfworld_demo_valid_unseen")
    lines = ["| world model | Delta-F1 | s.e. | changes only | 4 steps | 16 steps |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for name, report in record["one_step"]["all"].items():
        points = {point["length"]: 100 * point["delta_f1"] for point in record["rollouts"][name]}
        lines.append(
            f"| {name} | {100 * report['mean']:.1f} | {100 * report['stderr']:.2f} | "
            f"{100 * report['nonempty_mean']:.1f} | {points[4]:.1f} | {points[16]:.1f} |"
        )
    n = next(iter(record["one_step"]["all"].values()))["n"]
    rows = {(agent, world): (rate, score) for agent, world, rate, score in record["agents"]}
    lines += [
        "",
        "| agent | world | success (95 % interval) | goal conditions |",
        "|---|---|---:|---:|",
    ]
    for (agent, world), (rate, score) in rows.items():
        interval = f"{100 * rate['value']:.1f} ({100 * rate['low']:.1f} – {100 * rate['high']:.1f})"
        lines.append(f"| {agent} | {world} | {interval} | {100 * score:.1f} |")
    held = 100 * record["plans"]["retrieval"]["precision"]
    games = rows["expert", "real"][0]["n"]
    learnt = record["counts"]["training transitions"]
    lines += [
        "",
        f"Percent; official valid_unseen, all {games} games, {n:,} transitions, one seed; the "
        f"retrieval model learnt {learnt:,} transitions of {record['config']['train_tasks']} training "
        "games. Of the plans that the expert makes in the retrieval model's imagination and that "
        f"succeed there, {held:.1f} % succeed when carried out. "
        f"({_on(record)}, `comap demo --data-dir DIR --test-tasks 134`)",
    ]
    return "\n".join(lines)


_AGENTS = {
    "react": "ReAct+SFT",
    "imagine-and-act": "Imagine-and-Act+SFT",
    "comap": "CoMap, not yet trained",
}
_P_SOURCES = {"verbalizer": "p from the verbalizer", "head": "p from a head at its start (0.5)"}


def _small() -> str:
    record = result("alfworld_small")
    lines = ["| agent | prompt | decoding | world model | seen (140) | unseen (134) | all (274) |"]
    lines.append("|---|---|---|---|---:|---:|---:|")
    for cell in record["cells"]:
        name = _AGENTS[cell["agent"]]
        source = _P_SOURCES.get(cell["options"].get("p_source", ""))
        rates = " | ".join(_percent(cell[split]) for split in ("valid_seen", "valid_unseen", "all"))
        model = cell["world_model"] or ("itself" if cell["agent"] == "imagine-and-act" else "–")
        lines.append(
            f"| {name}{f', {source}' if source else ''} | {cell['state_text']} | {cell['decoding']} | "
            f"{model} | {rates} |"
        )
    lines += ["", *_small_world_models(record)]
    seeds, steps = len(record["seeds"]), record["max_episode_steps"]
    parameters = next(iter(record["training"].values()))["parameters"]
    lines += [
        "",
        f"Percent of games won within {steps} steps, greedily: mean ± standard deviation over "
        f"{seeds} seeds, each with models of its own ({parameters:,} parameters). History prompts "
        "tell the last 3 turns, and were trained on as many tokens as belief prompts. Delta-F1 on "
        f"{record['world_models']['transitions']:,} transitions of the 274 games, half an "
        f"expert's, half of ReAct+SFT with scored decoding. ({_on(record)}, `comap bench small`)",
    ]
    return "\n".join(lines)


def _percent(rate: Mapping[str, Any]) -> str:
    spread = "" if rate["sd"] is None else f" ± {100 * rate['sd']:.1f}"
    return f"{100 * rate['mean']:.1f}{spread}"


def _small_world_models(record: Mapping[str, Any]) -> list[str]:
    """Return the table of world models, the seeds of the language model together."""
    scores = record["world_models"]["scores"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for name, score in scores.items():
        groups.setdefault(name.partition("-")[0], []).append(score)
    lines = [
        "| world model | Delta-F1 | changes only | same text | unreadable |",
        "|---|---:|---:|---:|---:|",
    ]
    titles = {
        "language": "language (CoMap's)",
        "itself": "the policy itself (Imagine-and-Act's)",
    }
    for name, found in groups.items():
        shown = []
        for key in ("delta_f1", "delta_f1_nonempty", "exact_match"):
            values = [score[key] for score in found]
            sd = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            shown.append(f"{statistics.mean(values):.1f}{sd}")
        unread = 100 * statistics.mean(score["parse_failure_rate"] for score in found)
        lines.append(f"| {titles.get(name, name)} | {' | '.join(shown)} | {unread:.1f} |")
    return lines


def _runner() -> str:
    record = result("runner_speed")
    settings, rates = record["settings"], record["episodes_per_second"]
    live = settings["live"]
    lines = ["| | median | min | max |", "|---|---:|---:|---:|"]
    rows = {
        "runner's own time for a decision, µs": (record["overhead_microseconds"], ".0f"),
        f"episodes a second, {live} at a time": (rates[f"live {live}"], ".2f"),
        "episodes a second, one at a time": (rates["live 1"], ".2f"),
        f"ratio of {live} to one": (record["ratio"], ".1f"),
        "that ratio for ReAct, brief belief prompts": (record["react_brief"]["ratio"], ".1f"),
        "that ratio for ReAct, standard prompts": (record["react"]["ratio"], ".1f"),
    }
    for name, (values, form) in rows.items():
        shown = " | ".join(format(values[key], form) for key in ("median", "min", "max"))
        lines.append(f"| {name} | {shown} |")
    parameters = record["model"]["parameters"]
    lines += [
        "",
        "The runner's own time is all but the environment's, with a model that answers at once. "
        f"The episodes are those of an agent that makes one call a step, with a prompt of some 50 "
        f"tokens and a reply of 16, played by a tiny model ({parameters:,} parameters, double "
        f"precision): {settings['episodes']} episodes of {settings['steps']} steps, both ways in "
        f"turns, {settings['repeats']} times, trajectories the same to the byte. ReAct's standard "
        "prompts have some 1,000 tokens, which a processor reads little faster in a batch. "
        f"({_on(record)}, `comap bench runner`)",
    ]
    return "\n".join(lines)


def _shipped() -> str:
    from ..lm.shipped import model_folder

    record = json.loads((model_folder() / "training.json").read_text("utf-8"))
    told = record["evaluation"]
    rates = " and ".join(
        f"{100 * rate['success']:.1f} % of {rate['n']} tasks of {split}"
        for split, rate in told["splits"].items()
    )
    scores = told["delta_f1"]
    return (
        f"On generated tasks that it was not trained on it wins {rates}, greedily with masked "
        f"decoding; its world model's Delta-F1 is {scores['frozen']['all']:.1f} on frozen transitions "
        f"and {scores['on_policy']['all']:.1f} on its own. ({_on(record)}, `comap bench shipped`)"
    )


def _coevolution() -> str:
    from .readme_coevolution import coevolution_section

    record = result("alfworld_coevolution")
    settings, steps = record["settings"], record["max_episode_steps"]
    sizes = {told["parameters"] for told in record["warmup"].values()}
    spent = [one["cpu_seconds"] for row in record["rows"] for one in row["seeds"]]
    longest = max(sum(one.values()) for one in spent) / 60
    return "\n".join(
        [
            coevolution_section(record),
            "",
            f"Percent of {settings['final_tasks']} games of each split won within {steps} steps at "
            f"temperature {settings['evaluation_temperature']}; Delta-F1 on frozen transitions, half "
            "an expert's and half the SFT policy's (all; those that change a fact; those whose facts "
            "can be predicted, and the rest), and on each row's own transitions (all; changes); NLL "
            "of change tokens; at how many steps the action gate opened, and how many of those actions "
            "were refused; URR, HRR and BRP of "
            f"{settings['diagnosed']} decisions. Mean ± standard deviation over seeds, each with "
            f"models of its own ({', '.join(f'{size:,}' for size in sorted(sizes))} parameters, "
            f"belief prompts, free decoding), {settings['rounds']} rounds of "
            f"{settings['tasks_per_round']} tasks; a row took at most {longest:.0f} minutes of one "
            "core. Below: how often the world-state gate took the student's prediction, each seed. "
            f"({_on(record)}, `comap bench coevolution`)",
        ]
    )


def _environments() -> str:
    files = {
        "comap/ALFWorld-v0": ("alfworld_speed", "alfworld_demo_valid_unseen"),
        "comap/ScienceWorld-v0": ("scienceworld_speed", "scienceworld_demo"),
        "comap/WebShop-v0": ("webshop_speed", "webshop_demo"),
        "comap/StableToolBench-v0": ("stabletoolbench_speed", "stabletoolbench_demo"),
        "comap/SearchQA-v0": ("searchqa_speed", "searchqa_demo"),
    }
    records, told = {}, {}
    for env_id, (speed, demo) in files.items():
        records[env_id] = {"speed": result(speed), "demo": result(demo)}
        told[env_id] = f"({env_id}: {_on(records[env_id]['demo'])})"
    return environments_section(records, told)


def _scienceworld() -> str:
    speed, beliefs = result("scienceworld_speed"), result("scienceworld_beliefs")
    told = (
        f"({_on(speed)}, `comap bench speed scienceworld --peer upstream`)",
        f"({_on(beliefs)}, `comap bench beliefs scienceworld`)",
    )
    return scienceworld_section(speed, beliefs, told)


def _webshop() -> str:
    record = result("webshop_speed")
    return webshop_section(record, _on(record))


def _tools() -> str:
    record = result("stabletoolbench_speed")
    expert = result("stabletoolbench_experts")
    said = expert_line(expert, _on(expert))
    return tools_section(record, _on(record), result("stabletoolbench_demo"), said)


def _searchqa() -> str:
    record = result("searchqa_speed")
    return searchqa_section(record, _on(record))


def _trained() -> str:
    if not files(__package__).joinpath("results/comap_tiny.json").is_file():
        return "Not measured yet."
    record = result("comap_tiny")
    spent = [f"{one['cpu_seconds'] / 60:.0f}" for one in record["trainings"]]
    return "\n".join(
        [
            trained_section(record),
            "",
            "One seed; all evaluated splits together, the standard error over transitions. The "
            f"trainings took {' and '.join(spent)} minutes of one core. "
            f"({_on(record)}, `comap bench trained`)",
        ]
    )


_NOISE = {
    "ALFWorld, contents of receptacles seen for the first time: starts": "alfworld_noise_start_{}",
    "the same: after GRPO": "alfworld_noise_grpo_{}",
    "the same: after GRPO+PaW": "alfworld_noise_grpo_paw_{}",
    "WebShop, codes of products (METHODS.md 2.9's rule): a start": "webshop_noise",
    "WebShop, all of a listing: a start": "webshop_noise_listings",
}


def _noise() -> str:
    groups: dict[str, list[dict[str, Any]]] = {}
    for title, name in _NOISE.items():
        names = [name.format(seed) for seed in range(3)] if "{}" in name else [name]
        groups[title] = [result(one) for one in names]
    last = max(
        (one for found in groups.values() for one in found), key=lambda one: str(one["date"])
    )
    return noise_section(groups, f"({_on(last)}, `comap bench noise-gradients`)")


_OPENING = ("selective_opening_0", "selective_opening_1")  # a policy each
_PAW = {"paw": "alfworld_paw", "paw-ce": "alfworld_paw_ce", "webshop-paw": "webshop_paw"}


def _paw(section: str) -> str:
    if not files(__package__).joinpath(f"results/{_PAW[section]}.json").is_file():
        return "Not measured yet."
    record = result(_PAW[section])
    return paw_text(record, _on(record))


def _viewer() -> str:
    record = result("viewer_speed")
    return viewer_section(record, _on(record))


def _selective() -> str:
    if not files(__package__).joinpath("results/selective.json").is_file():
        return "Not measured yet."
    record = result("selective")
    return selective_section(record, _on(record))


def _opening() -> str:
    records = [result(name) for name in _OPENING]
    return opening_section(records, _on(records[-1]))


def _capacity() -> str:
    record = result("capacity")
    return capacity_section(record, f"{_on(record)}, `comap bench capacity`")


def _overhead() -> str:
    record = result("paw_overhead_tiny")
    return overhead_section(record, _on(record))


def _reliability() -> str:
    record = result("reliability")
    return reliability_section(record, _on(record))


def _serving() -> str:
    record = result("serving_speed")
    return serving_section(record, _on(record))


SECTIONS: dict[str, Callable[[], str]] = {
    "speed": _speed,
    "environments": _environments,
    "overhead": _overhead,
    "viewer": _viewer,
    "selective": _selective,
    "selective-opening": _opening,
    "parity": _parity,
    "models": _models,
    "small": _small,
    "runner": _runner,
    "reliability": _reliability,
    "serving": _serving,
    "shipped": _shipped,
    "coevolution": _coevolution,
    "trained": _trained,
    "noise": _noise,
    **{section: partial(_paw, section) for section in _PAW},
    "scienceworld": _scienceworld,
    "webshop": _webshop,
    "tools": _tools,
    "searchqa": _searchqa,
    "capacity": _capacity,
}
"""The parts of the README that are written from results, by the name in their marks."""


def update(text: str) -> str:
    """Return the README with its numbers from the result files.

    Args:
        text: The README; each part stands between ``<!-- results: NAME -->`` and ``<!-- end -->``.

    Raises:
        DataCorrupt: A part's marks are missing.

    Example:
        >>> update("no marks")
        Traceback (most recent call last):
        ...
        comap.errors.DataCorrupt: expected '<!-- results: speed -->' ... '<!-- end -->' in the README
    """
    for name, write in SECTIONS.items():
        start = f"<!-- results: {name} -->\n"
        head, mark, rest = text.partition(start)
        _, end, tail = rest.partition("<!-- end -->")
        if not (mark and end):
            raise DataCorrupt(f"expected {start.strip()!r} ... '<!-- end -->' in the README")
        text = f"{head}{mark}{write()}\n{end}{tail}"
    return text


if __name__ == "__main__":
    readme = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    readme.write_text(update(readme.read_text("utf-8")), encoding="utf-8")
