"""Reports: every text stays text, nothing comes from elsewhere, and the viewer works."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest

from comap.benchmarks.episodes import episode_record, script_json
from comap.benchmarks.report import (
    Episode,
    Pack,
    Plot,
    Series,
    Table,
    print_table,
    progress,
    render_report,
    write_report,
)
from comap.errors import MissingExtra, OptionError
from comap.facts import Delta, State, apply, diff, fact_to_text
from comap.trajectory import Call, Predicted, Step, Trajectory

pytest.importorskip("jinja2", reason="the extra viz is not installed")
pytest.importorskip("matplotlib", reason="the extra viz is not installed")
pytest.importorskip("rich", reason="the extra viz is not installed")

EVIL = (
    "</script><script>document.body.dataset.pwned=1</script>"
    "<img src=x onerror=\"document.body.dataset.pwned=1\"><!--</style></title><svg onload='x'>"
    "&lt;b&gt; {{ 7 * 7 }} {% raw %} $\\frac{1}{2}$ [bold]\x1b[31m"
    "\x00\x7f\u202eabc\u2028\u2029\ud800\ufffe 😀"
)
HTML_TAGS = """
    html head meta title style body header main section article nav h1 h2 h3 figure figcaption div
    table thead tbody tr th td dl dt dd p kbd bdi span ul ol li input noscript script
    strong select button dialog
"""
SVG_TAGS = "svg g path text use defs clippath rect"
ATTRIBUTES = """
    lang charset content http-equiv name class id scope type placeholder autocomplete hidden
    spellcheck role href d x y width height viewbox transform clip-path fill stroke opacity
    fill-opacity stroke-width stroke-linecap stroke-linejoin stroke-opacity font-size text-anchor
    aria-label aria-labelledby aria-hidden
"""


def step(t: int, before: State, after: State, **more: Any) -> Step:
    given: dict[str, Any] = {"action": f"act {t}", "observation": f"seen {t}", "imagined": False}
    given |= more
    action, observation = given.pop("action"), given.pop("observation")
    return Step(
        t,
        action,
        observation,
        given.pop("reward", 0.0),
        given.pop("terminated", False),
        given.pop("truncated", False),
        given.pop("imagined"),
        after,
        diff(before, after),
        **given,
    )


def state(*facts: tuple[str, ...], parsed: bool = True) -> State:
    return State(frozenset(facts), parsed)


START = state(("closed", "safe 1"), ("at", "agent", "desk 1"))
OPENED = state(("open", "safe 1"), ("at", "agent", "desk 1"))
FILLED = state(("open", "safe 1"), ("at", "agent", "desk 1"), ("in", "pen 1", "safe 1"))


def trajectory(*steps: Step, text: str = "text", **more: Any) -> Trajectory:
    given: dict[str, Any] = {"facts": START} | more
    return Trajectory(text, text, text, text, text, text, steps=steps, **given)


def compared() -> Episode:
    real = trajectory(
        step(1, START, FILLED, observation="You open the safe and see a pen."),
        step(2, FILLED, FILLED, observation="Nothing happens.", invalid_action=True),
        step(3, FILLED, START, terminated=True, success=True, score=1.0),
    )
    imagined = trajectory(
        step(1, START, OPENED, observation="You open the safe and see nothing.", imagined=True),
        step(2, OPENED, OPENED, observation="Nothing happens.", imagined=True),
        world_model="retrieval",
    )
    return Episode("compared", real, imagined)


def foreseen() -> Episode:
    said = Predicted("It opens.", OPENED, diff(START, OPENED), "a model", 0.75)
    return Episode(
        "foreseen",
        trajectory(step(1, START, FILLED, prediction=said), step(2, FILLED, FILLED)),
        None,
    )


def evil() -> Episode:
    after = state((EVIL, EVIL), (EVIL,), parsed=False)
    said = Predicted(EVIL, after, diff(START, after), EVIL, float("nan"))
    call = Call(EVIL, EVIL, EVIL, 3, 2, ((EVIL, EVIL),), EVIL, finish=EVIL, adapter=EVIL)
    told: dict[str, Any] = {"calls": (call,), "notes": {EVIL: EVIL, "list": [EVIL, {EVIL: None}]}}
    told |= {"reward": float("inf"), "prediction": said}
    steps = (step(1, START, after, action=EVIL, observation=EVIL, **told),)
    more: dict[str, Any] = {"settings": {EVIL: EVIL}, "review": (call,), "trial": 2}
    real = trajectory(*steps, text=EVIL, error=EVIL, world_model=EVIL, seed=3, **more)
    return Episode(EVIL, real, trajectory(*steps, text=EVIL, error=EVIL, world_model=EVIL))


def arguments() -> dict[str, Any]:
    return {
        "title": EVIL,
        "summary": {EVIL: EVIL},
        "tables": [Table(EVIL, (EVIL, "n"), ((EVIL, 1.5), (None, 2)), EVIL)],
        "plots": [
            Plot(
                EVIL, EVIL, EVIL, (Series("_" + EVIL, (1, 2), (1, float("nan")), (0, 1), (2, 3)),)
            ),
            Plot(EVIL, EVIL, EVIL, (Series(EVIL, (0, 1), (3, 4)),) * 2, "bar", (EVIL, EVIL)),
        ],
        "episodes": [compared(), foreseen(), evil()],
    }


class Page(HTMLParser):
    """The elements and texts of a page."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.open: list[int] = []
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.elements[self.open.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, self.texts.get(i, ""))
            for i, (name, attributes) in enumerate(self.elements)
            if name == tag
        ]


@pytest.fixture(scope="module")
def markup() -> str:
    return render_report(**arguments())


@pytest.fixture(scope="module")
def page(markup: str) -> Page:
    return Page(markup)


def test_hostile_text_never_becomes_markup(page: Page) -> None:
    assert {tag for tag, _ in page.elements} <= {*HTML_TAGS.split(), *SVG_TAGS.split()}
    names = {name for _, attributes in page.elements for name in attributes}
    assert names <= set(ATTRIBUTES.split())
    assert not page.comments
    assert [attributes for attributes, _ in page.all("script")] == [
        {"type": "application/json", "id": "index"},
        {},
        *({"type": "text/plain", "id": f"packed-{i}"} for i in range(3)),
    ]
    assert len(page.all("style")) == 1 and len(page.all("title")) == 1


def test_hostile_text_is_all_there_with_hidden_characters_named(markup: str, page: Page) -> None:
    (_, title), *_ = page.all("title")
    assert title.startswith("</script><script>") and "{{ 7 * 7 }}" in title
    assert "[U+202E]abc[U+2028]" in title
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2028\u2029\ud800\ufffe]", markup)
    labels = [
        text for attributes, text in page.all("span") if attributes.get("class") == "hidden-char"
    ]
    assert {"U+202E", "U+001B", "U+0000", "U+D800", "U+FFFE"} <= set(labels)


def test_nothing_in_plots_is_read_as_mathematics(page: Page) -> None:
    texts = [text for _, text in page.all("text")]
    assert any("<script>" in text for text in texts)
    long = render_report(
        title="", summary={}, tables=[], plots=[Plot("", "$x^2$", "$\\bad{", ())], episodes=[]
    )
    assert {"$x^2$", "$\\bad{"} <= {text for _, text in Page(long).all("text")}


def unpacked(page: Page) -> list[dict[str, Any]]:
    """The episodes of a page, as its script unpacks them."""
    parts = [part for _, part in page.all("script")[2:]]
    return [json.loads(zlib.decompress(base64.b64decode(part))) for part in parts]


def test_the_data_blocks_are_the_data(markup: str, page: Page) -> None:
    (_, index), _, *parts = page.all("script")
    episodes = arguments()["episodes"]
    assert json.loads(index) == Pack(episodes).index()
    assert not set(index) & set("<>&\u2028\u2029") and index.isascii()
    assert set("".join(part for _, part in parts)) <= set(
        string.ascii_letters + string.digits + "+/="
    )
    assert unpacked(page) == [episode_record(episode) for episode in episodes]
    assert json.loads(script_json({EVIL: "\u2028"})) == {EVIL: "\u2028"}


def folded(data: dict[str, Any], side: dict[str, Any]) -> list[set[str]]:
    facts = set(side["facts"])
    beliefs = [set(facts)]
    for record in side["steps"]:
        facts = facts - set(record.get("removed", ())) | set(record.get("added", ()))
        beliefs.append(set(facts))
    return [{data["facts"][fact] for fact in belief} for belief in beliefs]


def test_folding_the_changes_gives_the_beliefs() -> None:
    episode = compared()
    data = episode_record(episode)
    assert episode.imagined is not None
    for name, side in (("real", episode.real), ("imagined", episode.imagined)):
        expected = [side.facts, *(step.facts for step in side.steps)]
        assert folded(data, data[name]) == [
            {fact_to_text(fact) for fact in belief.facts} for belief in expected
        ]


def test_delta_f1_of_each_step() -> None:
    episodes = [compared(), foreseen(), Episode("", compared().real, None)]
    found = [episode_record(episode) for episode in episodes]
    assert [one["delta_f1"] for one in found] == [
        [0.8, 1.0, None],
        [0.8, None],
        [None, None, None],
    ]
    assert found[0]["deltas"] == [[2, 1, 0], [0, 0, 0], None], "foreseen, missed, made up"
    assert found[2]["imagined"] is None


def test_delta_f1_does_not_count_drift() -> None:
    """The imagined belief lacks the pen since step 1; step 2 is nevertheless foreseen exactly."""
    away = Delta(frozenset({("closed", "safe 1")}), frozenset({("open", "safe 1")}))
    real = trajectory(step(1, START, FILLED), step(2, FILLED, apply(FILLED, away)))
    imagined = trajectory(step(1, START, OPENED), step(2, OPENED, apply(OPENED, away)))
    assert episode_record(Episode("", real, imagined))["delta_f1"] == [0.8, 1.0]


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    for tag, attributes in page.elements:
        assert "src" not in attributes and "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        if "href" in attributes:
            assert tag == "use" and cast("str", attributes["href"]).startswith("#plot-")
    (_, style), *_ = page.all("style")
    assert "url(" not in style and "@import" not in style and "http" not in style
    _, (_, script), *_ = page.all("script")
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(", "fetch", "http", "import("):
        assert word not in script


def test_the_content_security_policy_allows_this_script_and_style_only(page: Page) -> None:
    policies = [a["content"] for a, _ in page.all("meta") if "http-equiv" in a]
    assert len(policies) == 1 and policies[0] is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))

    def named(source: str) -> str:
        digest = hashlib.sha256(source.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    _, (_, script), *_ = page.all("script")
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == named(script)
    assert rules["style-src"] == named(page.all("style")[0][1])
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def test_ids_are_unique_and_references_lead_somewhere(markup: str, page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = re.findall(r'(?:href="#|url\(#)([^")]+)', markup)
    assert references and set(references) <= set(ids)


def test_two_renders_are_the_same(markup: str) -> None:
    assert render_report(**arguments()) == markup


def test_another_hash_seed_gives_the_same_page(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_report as t; import hashlib;"
        "print(hashlib.sha256(t.render_report(**t.arguments()).encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    told = {
        subprocess.run(
            command,
            env={"PYTHONHASHSEED": seed, "PATH": "", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs" / "demo" / "report.html"
    empty: dict[str, Any] = {"summary": {}, "tables": [], "plots": [], "episodes": []}
    write_report(path, title="first", **empty)
    first = path.read_bytes()
    assert first.startswith(b"<!doctype html>") and b"first" in first
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_report(path, title="second", **empty)
    assert path.read_bytes() == first
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.undo()
    write_report(path, title="second", **empty)
    assert b"second" in path.read_bytes() and list(path.parent.iterdir()) == [path]


RESULTS = Table(
    "Results",
    ("agent", "success", "Delta-F1", "note"),
    (("react", "5.0 % [1, 9]", None, "a"), ("tts", "50.0 % [40, 60]", 0.5, True)),
    "n = 100",
)


def test_numbers_are_aligned_on_the_page() -> None:
    page = Page(render_report(title="", summary={}, tables=[RESULTS], plots=[], episodes=[]))
    classes = [attributes.get("class") for attributes, _ in page.all("td")]
    assert classes == [None, "number", "number", None] * 2


def test_print_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(RESULTS)
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[0].strip() == "Results" and lines[-1].strip() == "n = 100"
    rows = [line.rstrip() for line in lines if "%" in line]
    assert len(rows) == 2
    assert rows[0].index("]") == rows[1].index("]") and rows[0].index("—") == rows[1].index("5 ")


def test_print_table_keeps_hostile_text_off_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(Table(EVIL, (EVIL,), ((EVIL,), ("x" * 300,)), EVIL))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "\x00" not in out
    assert "[U+001B]" in out and "[bold]" in out and "x" * 300 in out


def test_progress_is_one_plain_line_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress("[bold]Playing\x1b", total=3) as advance:
        advance()
        advance(2)
    assert re.fullmatch(
        r"\[bold\]Playing\[U\+001B\]: 3 of 3 in \d+\.\d s\n", capsys.readouterr().out
    )


def test_progress_draws_a_bar_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("[bold]Playing", total=2) as advance:
        advance()
        advance()
    out = capsys.readouterr().out
    assert "[bold]Playing" in out and "━" in out and "2/2" in out


@pytest.mark.parametrize("module", ["jinja2", "matplotlib", "rich"])
def test_a_missing_extra_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, cast("Any", None))
    with pytest.raises(MissingExtra, match=r"'viz'; run: pip install .comap\[viz\]"):
        if module == "rich":
            print_table(RESULTS)
        else:
            write_report(tmp_path / "report.html", **arguments())
    if module == "rich":
        with pytest.raises(MissingExtra), progress("Playing", total=1):
            pass
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(OptionError, match="2 values in each row"):
        Table("t", ("a", "b"), ((1,),))
    with pytest.raises(OptionError, match="lengths"):
        Series("s", (1, 2), (1,))
    with pytest.raises(OptionError, match="both or neither"):
        Series("s", (1,), (1,), low=(0,))
    with pytest.raises(OptionError, match="'pie'"):
        Plot("p", "", "", (), kind="pie")
    with pytest.raises(OptionError, match="one label for each of the 1 positions"):
        Plot("p", "", "", (Series("s", (1,), (1,)),), kind="bar", labels=("a", "b"))


def long_episode(i: int) -> Episode:
    steps, before = [], START
    for t in range(1, 51):
        after = state(*before.facts - {("at", "agent", str(t - 1))}, ("at", "agent", str(t)))
        steps.append(step(t, before, after, observation=f"Episode {i}: you arrive at place {t}."))
        before = after
    return Episode(f"episode {i}", trajectory(*steps), trajectory(*steps))


def test_two_hundred_episodes_stay_a_moderate_file() -> None:
    pack = Pack(long_episode(i) for i in range(200))
    assert (
        len(pack) == 200 and sum(map(len, pack.parts())) + len(script_json(pack.index())) < 600_000
    )


def thoughtful() -> Episode:
    prompt = (("system", "You are a robot."), ("user", "You see a safe."))
    calls = (
        Call(
            "generate", "draft", "Action: open safe", 40, 6, prompt, "Thought: it", finish="length"
        ),
        Call("imagine", "world model", "It opens.", 30, 3, prompt, adapter="wm"),
        Call("score", "reflect: confidence", " open safe", 60, 2),
    )
    notes = {"gate": True, "p": 0.7, "predicted_next_state": "It opens.", "tried": [1, {"a": None}]}
    first = step(1, START, OPENED, calls=calls, notes=notes)
    many = step(2, OPENED, FILLED, calls=calls[2:] * 150)
    real = trajectory(first, many, review=calls[:1], settings={"decoding": "free", "tau_p": 0.5})
    return Episode("thoughtful", real, None)


def test_what_was_asked_and_noted_is_in_the_data() -> None:
    data = episode = episode_record(thoughtful())
    first, second = episode["real"]["steps"]

    def named(pairs: list[list[int]]) -> dict[str, str]:
        return {data["texts"][name]: data["texts"][value] for name, value in pairs}

    def said(call: dict[str, Any], name: str) -> str:
        text: str = data["texts"][call[name]]
        return text

    notes = named(first["notes"])
    assert notes["gate"] == "true" and notes["p"] == "0.7"
    assert notes["predicted_next_state"] == "It opens." and json.loads(notes["tried"])[0] == 1
    draft, imagined, scored = first["calls"]
    assert said(draft, "text") == "Action: open safe" and said(draft, "prefix") == "Thought: it"
    assert draft["tokens"] == [40, 6] and said(draft, "finish") == "length"
    assert [data["texts"][part] for part in draft["messages"][0]] == ["system", "You are a robot."]
    assert draft["messages"] == imagined["messages"], "and they are stored once"
    assert said(imagined, "kind") == "imagine" and said(imagined, "adapter") == "wm"
    assert "messages" not in scored and "prefix" not in scored
    assert len(second["calls"]) + second["calls_left_out"] == 150 and "notes" not in second
    assert len(episode["real"]["review"]) == 1 and named(episode["settings"])["tau_p"] == "0.5"


def test_prompts_that_grow_from_step_to_step_are_stored_once() -> None:
    def talk(t: int) -> tuple[tuple[str, str], ...]:
        return tuple(
            (role, f"{role} {n} " * 200) for n in range(t) for role in ("user", "assistant")
        )

    steps = [
        step(t, START, START, calls=(Call("generate", "draft", f"say {t}", messages=talk(t)),))
        for t in range(1, 31)
    ]
    block = script_json(episode_record(Episode("long", trajectory(*steps), None)))
    assert len(block) < 30 * 2 * 200 * 14 * 1.5
