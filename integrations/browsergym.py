r"""BrowserGym's texts: its agents on `comap/Web-v0`, and comap's agents on its tasks; nothing is executed.

`BrowserGymView` shows a Web environment as BrowserGym does; the other way, `browsergym_wording` is what
`comap.integrations.adapter.adapt` needs. Pages are ``axtree_txt``, which BrowserGym's agents make by
``flatten_axtree_to_str``; actions are single calls with literals, such as ``fill('a51', 'lamp')``.
BrowserGym itself is not needed (its texts are those of version 0.14.3, which runs actions as code).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from ..envs.web.actions import Target, line_of, read_action
from ..envs.web.lines import FIRST, plain, quoted, read_page
from ..errors import OptionError
from .adapter import Wording

_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_NODE = re.compile(
    rf"(\t*)(?:\[(\w+)\] )?(\w+)(?: ({_QUOTED}))?(?: value=({_QUOTED}|[-\w.]+))?((?:, .*)?)"
)
_ATTRIBUTE = re.compile(rf", (\w+)(?:=({_QUOTED}|[-\w.]+))?")
_SHOWN = ("checked", "selected", "expanded", "pressed", "disabled", "required")
_SILENT = {"generic", "none", "list", "listitem", "paragraph", "form", "MenuListPopup"}
_SILENT |= {"InlineTextBox", "ListMarker", "LabelText"}
_UNREADABLE = (AttributeError, LookupError, SyntaxError, TypeError, ValueError)
_CALLS: Mapping[str, tuple[str, ...]] = {  # our action, and the names of the arguments
    "noop": ("wait", "wait_ms"),
    "send_msg_to_user": ("stop [{text}]", "text"),
    "report_infeasible": ("stop [N/A]", "reason"),
    "click": ("click [{bid}]", "bid", "button", "modifiers"),
    "fill": ("type [{bid}] [{value}] [0]", "bid", "value", "enable_autocomplete_menu"),
    "press": ("type [{bid}] [{held}] [1]", "bid", "key_comb"),
    "select_option": ("select [{bid}] [{options}]", "bid", "options"),
    "scroll": ("scroll [{way}]", "delta_x", "delta_y"),
    "goto": ("goto [{url}]", "url"),
    "go_back": ("goback",),
}


def from_browsergym(action: str, page: str = "") -> str:
    """Return comap's action for one of BrowserGym; a ``bid`` is the number of a line of `page`.

    Raises:
        OptionError: It is no single call that comap's Web environment has.

    Example:
        >>> from_browsergym("fill('12', value='red lamp')"), from_browsergym("send_msg_to_user('oak')")
        ('type [12] [red lamp] [0]', 'stop [oak]')
    """
    wrong = (
        f"expected one call of {', '.join(_CALLS)} with literals, found {action!r:.80}; a bid is text "
        "such as '12', and there are one option, plain clicks and the key Enter"
    )
    try:
        call: Any = ast.parse(action.strip()[:20_000], mode="eval").body
        written, *names = _CALLS[call.func.id]
        given = {names[index]: ast.literal_eval(one) for index, one in enumerate(call.args)}
        given |= {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    except (*_UNREADABLE, RecursionError, MemoryError) as error:
        raise OptionError(wrong) from error
    bid, options = given.get("bid", ""), given.get("options", "")
    options = options[0] if isinstance(options, list) and len(options) == 1 else options
    fits = given.keys() <= set(names) and isinstance(bid, str) and isinstance(options, str)
    rest = given.get("button", "left"), given.get("modifiers") or [], given.get("key_comb", "Enter")
    if not fits or ("bid" in names) != bid.isdecimal() or rest != ("left", [], "Enter"):
        raise OptionError(wrong)
    line, _ = line_of(page, Target(int(bid[:6] or 0)))
    known = {**dict.fromkeys(names, ""), **given, "options": options}
    known["held"] = line.properties.get("value", "") if line else ""
    known["way"] = "up" if str(given.get("delta_y", "")).startswith("-") else "down"
    return written.format_map(known)


def to_browsergym(action: str, page: str, bids: Sequence[str], start: str = "") -> str:
    r"""Return BrowserGym's action for one of comap; to type and press Enter is two calls, a line each.

    Args:
        action: As comap's Web environment takes it.
        page: The page that it is about.
        bids: The ``bid`` of each of its lines.
        start: The address that ``restart`` opens.

    Raises:
        OptionError: No action can be read, or its line is not there or has no bid.

    Example:
        >>> to_browsergym("type [2] [lamp] [0]", "", ("", "a51"))
        "fill('a51', 'lamp')"
    """
    move = read_action(action)
    if move is None:
        raise OptionError(f"expected an action of comap's Web environment, found {action!r:.80}")
    text, number = move.text, move.target.number or line_of(page, move.target)[1]
    bid = bids[number - 1] if 0 < number <= len(bids) else ""
    if move.target != Target() and not bid:
        raise OptionError(f"expected a line of the page that has a bid, found {move.target}")
    return {
        "click": f"click({bid!r})",
        "type": f"fill({bid!r}, {text!r})" + f"\npress({bid!r}, 'Enter')" * move.enter,
        "select": f"select_option({bid!r}, {text!r})",
        "scroll": f"scroll(0, {'-' * (text == 'up')}720)",
        "wait": "noop()",
        "goback": "go_back()",
        "restart": f"goto({start!r})",
        "goto": f"goto({text if '://' in text else f'http://{text}'!r})",
        "stop": f"{'report_infeasible' if plain(text) == 'n/a' else 'send_msg_to_user'}({text!r})",
    }[move.verb]


def from_axtree(tree: str, url: str = "") -> tuple[str, tuple[str, ...]]:
    r"""Return a page of BrowserGym as comap's Web environment shows it, and the bid of each line.

    Example:
        >>> page, bids = from_axtree("RootWebArea 'Shop', focused\n\t[a5] link 'Cart'", "http://shop.test/")
        >>> print(page.replace("\t", "  "), bids)
        URL shop.test/
        [1] RootWebArea 'Shop'
          [2] link 'Cart' ('', 'a5')
    """
    lines, bids = [FIRST + url.partition("://")[2]], list[str]()
    above: list[tuple[int, str]] = []  # depth and value of the lines around
    for found in filter(None, map(_NODE.fullmatch, tree.split("\n"))):
        tabs, bid, role, name, value, rest = found.groups(default="")
        name, value = _word(name), _word(value)
        while above and above[-1][0] >= len(tabs):
            above.pop()
        if role in _SILENT or (role == "StaticText" and above and name == above[-1][1]):
            continue  # what is typed into a field is its value
        held = {key: _word(said or "True") for key, said in _ATTRIBUTE.findall(rest)}
        shown = "".join(f" {key}: {held[key]}" for key in _SHOWN if key in held)
        bids.append(bid)
        shown = f" value: {quoted(value)}{shown}" if value else shown
        lines.append(f"{len(above) * chr(9)}[{len(bids)}] {role} {quoted(name)}{shown}")
        above.append((len(tabs), value))
    return "\n".join(lines), tuple(bids)


def _word(said: str) -> str:
    """Return a literal of BrowserGym's text as comap writes it."""
    try:
        return said.lower() if said in ("True", "False") else str(ast.literal_eval(said or "''"))
    except (SyntaxError, ValueError):  # no literal of Python: some other program's text
        return said.strip("'\"")


def to_axtree(page: str) -> str:
    r"""Return a page of comap's Web environment as BrowserGym writes it; bids are the lines' numbers.

    Example:
        >>> to_axtree("URL a.test/\n[1] textbox 'City' value: 'Bonn'\n[2] checkbox 'Gift' checked: true")
        "[1] textbox 'City' value='Bonn'\n[2] checkbox 'Gift', checked='true'"
    """
    shown, lines = read_page(page), list[str]()
    for number, (depth, role, name, held) in enumerate(shown.lines if shown else (), 1):
        bid = "" if role == "StaticText" else f"[{number}] "
        said = f" value={held['value']!r}" if "value" in held else ""
        for key in filter(held.__contains__, _SHOWN):
            word = repr(held[key]) if key in ("checked", "pressed") else held[key].title()
            said += f", {key}" if key == "required" else f", {key}={word}"
        lines.append(f"{depth * chr(9)}{bid}{role} {name!r}{said}")
    return "\n".join(lines)


class BrowserGymView(gymnasium.Wrapper[Any, str, str, str]):
    """`comap/Web-v0`, in the dialect ``comap``, for agents of BrowserGym.

    Observations have ``goal``, ``goal_object``, ``url``, ``axtree_txt``, ``last_action`` and
    ``last_action_error``. The rest is comap's.

    Example:
        >>> env = BrowserGymView(gymnasium.make("comap/Web-v0", split="test"))
        >>> observation, info = env.reset(seed=0)
        >>> env.step("click('999')")[0]["last_action_error"]
        'there is no line [999], only ...'
    """

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode: see `comap.envs.TextEnv.reset`."""
        self._page, info = self.env.reset(**given)
        return self._seen("", "", info), info

    def step(self, action: str) -> Any:
        """Take one action of BrowserGym; what cannot be read is an invalid one."""
        try:
            meant, wrong = from_browsergym(action, self._page), ""
        except OptionError as error:
            meant, wrong = "", str(error)
        shown, *rest, info = self.env.step(meant)
        self._page = shown if shown.startswith(FIRST) else self._page
        return (self._seen(action, wrong or info["refused"], info), *rest, info)

    def _seen(self, action: str, error: str, info: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "goal": info["goal"],
            "goal_object": ({"type": "text", "text": info["goal"]},),
            "url": "http://" + self._page.split("\n", 1)[0].removeprefix(FIRST),
            "axtree_txt": to_axtree(self._page),
            "last_action": action,
            "last_action_error": error,
        }


def browsergym_wording() -> Wording:
    """Return what `comap.integrations.adapter.adapt` needs for an environment of BrowserGym.

    Its observations must have ``axtree_txt``, and it must take several calls at once (its default).
    One wording is for one environment: ``adapt(env, WebCanonicalizer(), browsergym_wording())``.
    """
    seen: dict[str, Any] = {}

    def observe(observation: Mapping[str, Any]) -> str:
        url = str(observation["url"])
        start = seen["start"] if observation.get("last_action") else url
        seen.update(observation, start=start, page=from_axtree(observation["axtree_txt"], url))
        return str(seen["page"][0])

    return Wording(
        goal=lambda _: str(seen.get("goal", "")),
        observe=observe,
        act=lambda action: to_browsergym(action, seen["page"][0], seen["page"][1], seen["start"]),
        refused=lambda _: bool(seen.get("last_action_error")),
    )
