r"""BrowserGym's texts: its agents on `comap/Web-v0`, and comap's agents on its tasks; nothing is executed.

`BrowserGymView` shows a Web environment as BrowserGym does; the other way, `browsergym_wording` is what
`comap.integrations.adapter.adapt` needs. Pages are ``axtree_object``, which BrowserGym's environments
return, or ``axtree_txt``, which its agents make of that by ``flatten_axtree_to_str``; actions are single
calls with literals, such as ``fill('a51', 'lamp')``.
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
_PROPERTIES = ("checked", "selected", "expanded", "pressed", "disabled", "required")
# Roles of lines that comap's pages leave out: they say nothing that the lines within them do not.
_SILENT = {"generic", "none", "list", "listitem", "paragraph", "form", "MenuListPopup"}
_SILENT |= {"InlineTextBox", "LineBreak", "ListMarker", "LabelText"}
_UNREADABLE = (AttributeError, LookupError, SyntaxError, TypeError, ValueError)
_CALLS: Mapping[str, tuple[str, ...]] = {  # our action, and the names of the arguments
    "noop": ("wait", "wait_ms"),
    "send_msg_to_user": ("stop [{text}]", "text"),
    "report_infeasible": ("stop [N/A]", "reason"),
    "click": ("click [{bid}]", "bid", "button", "modifiers"),
    "fill": ("type [{bid}] [{value}] [0]", "bid", "value", "enable_autocomplete_menu"),
    "press": ("type [{bid}] [{present_value}] [1]", "bid", "key_comb"),
    "select_option": ("select [{bid}] [{options}]", "bid", "options"),
    "scroll": ("scroll [{direction}]", "delta_x", "delta_y"),
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
    refusal = (
        f"expected one call of {', '.join(_CALLS)} with literals, found {action!r:.80}; a bid is text "
        "such as '12', and there are one option, plain clicks and the key Enter"
    )
    try:
        # BrowserGym runs an action as Python; here it is only parsed, and its arguments are literals.
        call: Any = ast.parse(action.strip()[:20_000], mode="eval").body
        template, *names = _CALLS[call.func.id]
        arguments = {names[index]: ast.literal_eval(node) for index, node in enumerate(call.args)}
        arguments |= {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (*_UNREADABLE, RecursionError, MemoryError) as error:
        raise OptionError(refusal) from error

    bid = arguments.get("bid", "")
    options = arguments.get("options", "")
    if isinstance(options, list) and len(options) == 1:
        options = options[0]
    are_texts = isinstance(bid, str) and isinstance(options, str)
    if not are_texts or not arguments.keys() <= set(names):
        raise OptionError(refusal)

    # Other buttons, keys and modifiers have no action of comap's.
    is_plain = (
        arguments.get("button", "left") == "left"
        and (arguments.get("modifiers") or []) == []
        and arguments.get("key_comb", "Enter") == "Enter"
    )
    if not is_plain or ("bid" in names) != bid.isdecimal():
        raise OptionError(refusal)

    # comap types and presses Enter in one action: a bare Enter types what the field has.
    line, _ = line_of(page, Target(int(bid[:6] or 0)))
    values = {**dict.fromkeys(names, ""), **arguments, "options": options}
    values["present_value"] = line.properties.get("value", "") if line else ""
    scrolls_up = str(arguments.get("delta_y", "")).startswith("-")
    values["direction"] = "up" if scrolls_up else "down"
    return template.format_map(values)


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

    text = move.text
    number = move.target.number
    if not number:
        _, number = line_of(page, move.target)
    bid = bids[number - 1] if 0 < number <= len(bids) else ""
    is_about_a_line = move.target != Target()
    if is_about_a_line and not bid:
        raise OptionError(f"expected a line of the page that has a bid, found {move.target}")

    # What some verbs need beside the line and the text; the others leave it unused.
    typing = f"fill({bid!r}, {text!r})"
    if move.enter:
        typing += f"\npress({bid!r}, 'Enter')"
    distance = -720 if text == "up" else 720  # BrowserGym's window is 720 high
    address = text if "://" in text else f"http://{text}"
    # The answer N/A says that the task cannot be done.
    answering_function = "report_infeasible" if plain(text) == "n/a" else "send_msg_to_user"
    return {
        "click": f"click({bid!r})",
        "type": typing,
        "select": f"select_option({bid!r}, {text!r})",
        "scroll": f"scroll(0, {distance})",
        "wait": "noop()",
        "goback": "go_back()",
        "restart": f"goto({start!r})",
        "goto": f"goto({address!r})",
        "stop": f"{answering_function}({text!r})",
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
    lines = [FIRST + url.partition("://")[2]]
    bids: list[str] = []
    enclosing: list[tuple[int, str]] = []  # depth and value of the lines around
    for node in filter(None, map(_NODE.fullmatch, tree.split("\n"))):
        tabs, bid, role, name, value, attribute_list = node.groups(default="")
        name = _word(name)
        value = _word(value)
        while enclosing and enclosing[-1][0] >= len(tabs):
            enclosing.pop()

        # What is typed into a field is its value, and need not be a line too.
        repeats_value = role == "StaticText" and enclosing and name == enclosing[-1][1]
        if role in _SILENT or repeats_value:
            continue

        attributes = {
            key: _word(literal or "True") for key, literal in _ATTRIBUTE.findall(attribute_list)
        }
        properties = [f" {key}: {attributes[key]}" for key in _PROPERTIES if key in attributes]
        if value:
            properties.insert(0, f" value: {quoted(value)}")
        bids.append(bid)

        # Depth counts the lines that are left, not BrowserGym's.
        indent = "\t" * len(enclosing)
        lines.append(f"{indent}[{len(bids)}] {role} {quoted(name)}{''.join(properties)}")
        enclosing.append((len(tabs), value))
    return "\n".join(lines), tuple(bids)


def flattened(tree: Mapping[str, Any]) -> str:
    r"""Return BrowserGym's ``axtree_object``, the browser's own tree, as text.

    It is what BrowserGym's ``flatten_axtree_to_str`` writes, without the lines and the properties that
    comap's pages leave out.

    Example:
        >>> page = {"nodeId": "1", "role": {"value": "RootWebArea"}, "name": {"value": "Shop"}}
        >>> link = {"nodeId": "2", "role": {"value": "link"}, "name": {"value": "Cart"}}
        >>> nodes = [page | {"childIds": ["2"]}, link | {"browsergym_id": "a5"}]
        >>> print(flattened({"nodes": nodes}).replace("\t", "  "))
        RootWebArea 'Shop'
          [a5] link 'Cart'
    """
    nodes = {node["nodeId"]: node for node in tree["nodes"]}
    lines = []
    waiting: list[tuple[Any, int, str]] = []
    if nodes:
        waiting.append((nodes.pop(tree["nodes"][0]["nodeId"]), 0, ""))
    while waiting:
        node, depth, name_around = waiting.pop()
        line = _node_line(node, name_around)
        if line:
            lines.append("\t" * depth + line)
            depth += 1

        # Each node comes once, whatever a broken tree says.
        name = str(node.get("name", {}).get("value", ""))
        child_ids = [child_id for child_id in node.get("childIds", ()) if child_id in nodes]
        children = [nodes.pop(child_id) for child_id in dict.fromkeys(child_ids)]
        waiting += [(child, depth, name) for child in reversed(children)]
    return "\n".join(lines)


def _node_line(node: Mapping[str, Any], name_around: str) -> str:
    """Return a node of the browser's tree as a line; empty for one that says nothing."""
    role = str(node["role"]["value"])
    name = str(node.get("name", {}).get("value", ""))
    repeats_name = role == "StaticText" and name in name_around
    if "name" not in node or role in _SILENT or repeats_name:
        return ""

    bid = node.get("browsergym_id")
    line = f"{role} {name.strip()!r}" if bid is None else f"[{bid}] {role} {name.strip()!r}"
    value = node.get("value", {}).get("value")
    if value is not None:
        line += f" value={value!r}"
    for entry in node.get("properties", ()):
        key = entry["name"]
        content = entry.get("value", {}).get("value")
        if key not in _PROPERTIES or content is None:
            continue
        if key != "required":
            line += f", {key}={content!r}"
        elif content:
            line += f", {key}"
    return line


def _word(literal: str) -> str:
    """Return a literal of BrowserGym's text as comap writes it."""
    if literal in ("True", "False"):
        return literal.lower()
    try:
        return str(ast.literal_eval(literal or "''"))
    except (SyntaxError, ValueError):  # no literal of Python: some other program's text
        return literal.strip("'\"")


def to_axtree(page: str) -> str:
    r"""Return a page of comap's Web environment as BrowserGym writes it; bids are the lines' numbers.

    Example:
        >>> to_axtree("URL a.test/\n[1] textbox 'City' value: 'Bonn'\n[2] checkbox 'Gift' checked: true")
        "[1] textbox 'City' value='Bonn'\n[2] checkbox 'Gift', checked='true'"
    """
    page_text = read_page(page)
    if page_text is None:
        return ""

    lines = []
    for number, (depth, role, name, properties) in enumerate(page_text.lines, 1):
        # BrowserGym gives no bids to mere text: nothing can be done with it.
        bid = "" if role == "StaticText" else f"[{number}] "
        attributes = ""
        if "value" in properties:
            attributes = f" value={properties['value']!r}"
        for key in filter(properties.__contains__, _PROPERTIES):
            attributes += _axtree_attribute(key, properties[key])
        indent = "\t" * depth
        lines.append(f"{indent}{bid}{role} {name!r}{attributes}")
    return "\n".join(lines)


def _axtree_attribute(key: str, value: str) -> str:
    """Return a property as BrowserGym writes it: some as text, others as Python's truth values."""
    if key == "required":
        return f", {key}"
    if key in ("checked", "pressed"):  # which may be "mixed" too
        return f", {key}={value!r}"
    return f", {key}={value.title()}"


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

    def reset(self, **reset_arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode: see `comap.envs.TextEnv.reset`."""
        self._page, info = self.env.reset(**reset_arguments)
        return self._observation("", "", info), info

    def step(self, action: str) -> Any:
        """Take one action of BrowserGym; what cannot be read is an invalid one."""
        read_error = ""
        try:
            comap_action = from_browsergym(action, self._page)
        except OptionError as error:
            comap_action = ""
            read_error = str(error)

        # A refusal is no page: BrowserGym shows the page again, and the refusal beside it.
        shown_text, *reward_and_end, info = self.env.step(comap_action)
        if shown_text.startswith(FIRST):
            self._page = shown_text
        observation = self._observation(action, read_error or info["refused"], info)
        return (observation, *reward_and_end, info)

    def _observation(self, action: str, error: str, info: Mapping[str, Any]) -> dict[str, Any]:
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

    Its observations have ``axtree_object``, as BrowserGym's own environments do, or ``axtree_txt``, made
    of it by an agent's preprocessor. It must take several calls at once (its default).
    One wording is for one environment: ``adapt(env, WebCanonicalizer(), browsergym_wording())``.
    """
    present: dict[str, Any] = {}  # the last observation, its page, and where the episode began

    def observe(observation: Mapping[str, Any]) -> str:
        url = str(observation["url"])
        start = present["start"] if observation.get("last_action") else url
        tree = observation.get("axtree_txt")
        if tree is None:
            tree = flattened(observation["axtree_object"])
        page, bids = from_axtree(tree, url)
        present.update(observation, start=start, page=page, bids=bids)
        return page

    return Wording(
        goal=lambda _: str(present.get("goal", "")),
        observe=observe,
        act=lambda action: to_browsergym(
            action, present["page"], present["bids"], present["start"]
        ),
        refused=lambda _: bool(present.get("last_action_error")),
    )
