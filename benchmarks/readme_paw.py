"""The README's part about PaW, written from its result, and the plot beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .plots import COLOURS, SYMBOLS, Plot, Series, render_plot

__all__ = ["paw_panels", "paw_plot", "paw_section", "paw_text"]

_NOTHING = "–"
_ALFWORLD = ("valid_seen", "valid_unseen")
_SPLITS = {"valid_seen": "seen", "valid_unseen": "unseen"}  # as tables call them
_WINDOW = 5
_WIDTH, _HEIGHT, _COLUMNS, _LINE = 480.0, 283.0, 2, 17.0
_MEASURES = (
    ("wm_lambda", "Adaptive weight λ", 1.0),
    ("wm_loss", "Loss on observations", 1.0),
    ("wm_clipped_ratio", "Observed tokens left out (p > ρ), %", 100.0),
    ("policy_loss", "Policy loss", 1.0),
    ("clip_fraction", "Clipped ratios, % of tokens", 100.0),
    ("entropy", "Entropy of the policy, nats a token", 1.0),
)
_MOST = 6  # curves of a panel: as many colours as there are


def paw_section(record: Mapping[str, Any]) -> str:
    """Return the tables of arms, with the usual start and with the one that hardly wins, as Markdown.

    Successes are in percent, mean ± standard deviation over seeds. Gains on the start, and differences
    to the first arm of the same algorithm, are over all evaluated tasks, in points: with an interval
    over tasks, differences also with one over seeds. The last column compares the time of an update's
    row without rollouts. Other environments than ALFWorld also show the mean score.

    Args:
        record: What `comap bench paw` wrote.

    Example:
        >>> print(paw_section({"arms": []}).splitlines()[0][:32])
        | arm | seeds | start | seen | u
    """
    splits = tuple((record.get("settings") or {}).get("evaluation_splits") or _ALFWORLD)
    text = _table(record["arms"], splits)
    sparse = record.get("sparse")
    if sparse:
        text += "\n\nWith a start that hardly ever wins:\n\n" + _table(sparse["arms"], splits)
    return text


def paw_text(record: Mapping[str, Any], told: str) -> str:
    """Return the tables, and beneath them how they were measured, as Markdown.

    Args:
        record: What `comap bench paw` wrote, of one run at least.
        told: When and on what it was measured.
    """
    settings, env_id = record["settings"], record["env"]["id"]
    runs = [one for arm in record["arms"] for one in arm["seeds"]]
    often = " or ".join(map(str, sorted({one["plays"] for one in runs})))
    often = "once" if often == "1" else f"{often} times"
    sizes = {split: one["n"] for split, one in runs[0]["success"]["final"].items()}
    alfworld = env_id == "comap/ALFWorld-v0"
    things = "games" if alfworld else "tasks"
    played = " and ".join(f"{sizes[split]} {split}" for split in settings["evaluation_splits"])
    every = "all " if settings["evaluation_tasks"] is None else ""
    source = "official" if record["env"]["options"].get("source") == "official" else "embedded"
    scores = "" if alfworld else ", score the mean of all plays in percent of the best"
    command = "comap bench paw" + ("" if alfworld else f" --env {env_id}")
    groups, members = (record["arms"][0]["settings"][name] for name in ("groups", "members"))
    shape = f"{groups} tasks, {members} episodes of each"
    return (
        f"{paw_section(record)}\n\n"
        f"Percent{scores}. Start and final policies play {every}{played} {things} {often} "
        f"at temperature {settings['evaluation_temperature']}; {settings['updates']} updates of "
        f"{groups * members} episodes each ({shape}) on {source} training {things}, at most "
        f"{settings['max_episode_steps']} steps; mean ± standard deviation over seeds, each with a "
        "starting policy of its own. Differences are to the same algorithm without PaW, with 95 % "
        "intervals over tasks and, where there are two seeds or more, over seeds. "
        "CPU time: of all updates, rollouts included, as a multiple of the same. "
        f"{_told_of_stops(runs)}"
        f"({told}, `{command}`)"
    )


def _told_of_stops(runs: Sequence[Mapping[str, Any]]) -> str:
    if not any(one.get("stopped_after") for one in runs):
        return ""
    return (
        "Runs that were stopped after fewer updates, as told beside the number of seeds, are not "
        "compared. "
    )


def _table(arms: Sequence[Mapping[str, Any]], splits: Sequence[str]) -> str:
    graded = tuple(splits) != _ALFWORLD
    titles = [
        *("arm", "seeds", "start"),
        *(_SPLITS.get(split, split) for split in splits),
        *(("score, start", "score", "difference in score [seeds]") if graded else ()),
        *("gain [tasks]", "difference [tasks]", "[seeds]"),
        *("rollouts, last 5 updates", "difference [seeds]", "CPU time"),
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    for arm in arms:
        lines.append(f"| {' | '.join(_cells(arm, splits, graded))} |")
    return "\n".join(lines)


def _cells(arm: Mapping[str, Any], splits: Sequence[str], graded: bool) -> list[str]:
    """Return a row of the table."""
    over = arm["over_seeds"]
    told = next(iter((arm.get("differences") or {}).values()), None)
    cells = [arm["told"], f"{len(arm['seeds'])}{_stopped(arm)}"]
    for name in ("start.all", *(f"final.{split}" for split in splits)):
        cells.append(_spread(over.get(f"success.{name}")))
    if graded:
        cells += [_spread(over.get(f"score.{end}.all")) for end in ("start", "final")]
        apart = None if told is None else told.get("score")
        cells.append(_NOTHING if apart is None else _signed(apart))
    return [
        *cells,
        *(_NOTHING if one is None else _signed(one) for one in (arm.get("gain"), told)),
        _NOTHING if told is None else _interval(told["seeds"]),
        _spread(over.get("training_last")),
        _NOTHING if told is None else _signed(told["training_last"]),
        _NOTHING if told is None else _ratio(told["update_cpu"]),
    ]


def _stopped(arm: Mapping[str, Any]) -> str:
    """Return after how many updates an arm's runs were stopped, where they were."""
    early = sorted({one["stopped_after"] for one in arm["seeds"] if one.get("stopped_after")})
    return f" (stopped after {' or '.join(map(str, early))})" if early else ""


def _ratio(told: Mapping[str, Any]) -> str:
    return _NOTHING if told["mean"] is None else f"{told['mean']:.2f}"


def _signed(told: Mapping[str, Any]) -> str:
    return f"{100 * told['mean']:+.1f} {_interval(told)}".replace(f" {_NOTHING}", "")


def _interval(told: Mapping[str, Any]) -> str:
    if told["low"] is None:
        return _NOTHING
    return f"[{100 * told['low']:+.1f}, {100 * told['high']:+.1f}]"


def _spread(told: Mapping[str, Any] | None) -> str:
    if told is None or told["mean"] is None:
        return _NOTHING
    spread = "" if told["sd"] is None else f" ± {100 * told['sd']:.1f}"
    return f"{100 * told['mean']:.1f}{spread}"


# -- the plot ------------------------------------------------------------------------------------


def paw_panels(record: Mapping[str, Any]) -> list[Plot]:
    """Return the plots: success of rollouts for each algorithm, and PaW's and the policy's measures.

    Lines are means over seeds of moving means over five updates; bands reach from the lowest seed to
    the highest.

    Args:
        record: What `comap bench paw` wrote.

    Example:
        >>> seed = {"seed": 0, "curve": {"success": [0.0, 0.5]}}
        >>> record = {"arms": [{"arm": "grpo", "told": "GRPO", "seeds": [seed]}]}
        >>> [(plot.title, plot.series[0].y) for plot in paw_panels(record)]
        [('Success of rollouts, GRPO, %', (0.0, 25.0))]
    """
    panels = []
    sparse = (record.get("sparse") or {}).get("arms", ())
    for case, told in ((record["arms"], ""), (sparse, ", start that hardly wins")):
        for name, arms in _by_algorithm(case).items():
            title = f"Success of rollouts, {name}{told}, %"
            panels += _panels(arms, "success", title, 100)
    main = [arm for arm in record["arms"] if arm["arm"].partition("-")[0] == arm["arm"]]
    for name, title, times in _MEASURES:
        panels += _panels(main, name, title, times)
    return panels


def _by_algorithm(arms: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for arm in arms:
        found.setdefault(arm["told"].partition("+")[0], []).append(arm)
    return found


def _panels(arms: Sequence[Mapping[str, Any]], name: str, title: str, times: float) -> list[Plot]:
    """Return a measure of some arms, in as many plots as it takes to tell their colours apart."""
    series = [one for arm in arms if (one := _series(arm, name, times)) is not None]
    parts = [series[at : at + _MOST] for at in range(0, len(series), _MOST)]
    return [Plot(title, "update", "", tuple(part)) for part in parts]


def _series(arm: Mapping[str, Any], name: str, times: float) -> Series | None:
    """Return an arm's curve; None where one of its seeds lacks a number."""
    curves = [one["curve"].get(name) for one in arm["seeds"]]
    curves = [curve for curve in curves if curve is not None and None not in curve]
    if not curves:
        return None
    length = min(map(len, curves))
    smooth = [_moving(curve[:length]) for curve in curves]
    at_each = list(zip(*smooth, strict=True))
    return Series(
        arm["told"],
        tuple(range(1, length + 1)),
        tuple(times * sum(values) / len(values) for values in at_each),
        tuple(times * min(values) for values in at_each),
        tuple(times * max(values) for values in at_each),
    )


def _moving(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and the few before it."""
    some = [values[max(at - _WINDOW + 1, 0) : at + 1] for at in range(len(values))]
    return [sum(part) / len(part) for part in some]


def paw_plot(record: Mapping[str, Any]) -> str:
    """Return all panels as one drawing, the text of an SVG file.

    Args:
        record: What `comap bench paw` wrote.

    Raises:
        MissingExtra: matplotlib is not installed.

    Example:
        >>> paw_plot({"arms": []})[:12]
        '<svg xmlns="'
    """
    panels = paw_panels(record)
    height = _HEIGHT + 2 * _LINE + _LINE * max((len(plot.series) for plot in panels), default=0)
    rows = -(-len(panels) // _COLUMNS)
    size = f"{_COLUMNS * _WIDTH:.0f} {max(rows, 1) * height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        'font-family="DejaVu Sans, Helvetica, sans-serif" font-size="12" fill="#2b3038">',
        '<rect width="100%" height="100%" fill="#fefefe"/>',
    ]
    for number, plot in enumerate(panels):
        left, top = number % _COLUMNS * _WIDTH, number // _COLUMNS * height
        drawn = render_plot(plot, f"p{number}")
        place = f'x="{left:.0f}" y="{top + 1.5 * _LINE:.0f}" width="{_WIDTH}" height="{_HEIGHT}"'
        parts.append(
            f'<text x="{left + 8:.0f}" y="{top + _LINE:.0f}" font-weight="bold">'
            f"{escape(plot.title)}</text>"
        )
        parts.append(drawn.replace("<svg ", f"<svg {place} ", 1))
        parts += _legend(plot, left + 40, top + _HEIGHT + 2.2 * _LINE)
    return "\n".join([*parts, "</svg>", ""])


def _legend(plot: Plot, left: float, top: float) -> list[str]:
    """Return a line for each series: its marker in its colour, and its name."""
    return [
        f'<text x="{left:.0f}" y="{top + number * _LINE:.0f}">'
        f'<tspan fill="{COLOURS[number]}">{SYMBOLS[number]}</tspan> {escape(one.name)}</text>'
        for number, one in enumerate(plot.series)
    ]
