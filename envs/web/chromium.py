"""The engine ``chromium``: the same sites as the twin's, in a real browser, with the same text.

The text is Chromium's accessibility tree without what has no line of its own: boxes, list items,
paragraphs, forms, and texts that are the name of what they stand in.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from ...errors import EngineError, SnapshotError
from .actions import Move, Target
from .browser import (
    HEIGHT,
    STEP_SECONDS,
    WIDTH,
    Browser,
    PageRequest,
    ScriptError,
    Served,
    Tab,
    find_program,
    shared,
)
from .engine import (
    MOST_HISTORY,
    MOST_REDIRECTS,
    Effect,
    Moment,
    PageLost,
    Refused,
    check_address,
    find_line,
    request_of,
)
from .lines import FIRST, plain, quoted
from .pages import to_html
from .sites import World

_T = TypeVar("_T")
_BOXES = {"none", "generic", "InlineTextBox", "ListMarker", "LineBreak", "LabelText"}
_NO_LINE = _BOXES | {"paragraph", "list", "listitem", "form", "MenuListPopup"}
_FIELDS = {"textbox", "searchbox", "combobox", "spinbutton"}
_NAMED_BY_TEXT = _FIELDS | {"link", "button", "heading", "option", "tab", "menuitem"}
_WITH_VALUE = _FIELDS | {"slider", "Date", "InputTime"}
_TYPED = _WITH_VALUE | {"DateTime", "ColorWell"}
_GROUPS = ("combobox", "radiogroup", "listbox")
_CONTAINERS = ("RootWebArea", "navigation", "radiogroup", "combobox", "listbox")
_FLAGS = ("disabled", "required")

# What is asked of elements. The page may have changed what these names mean; then it fools only itself.
_POINT = """function () {
  const text = this.nodeType !== 1, element = text ? this.parentElement : this;
  if (!element || !element.isConnected) return null;
  element.scrollIntoViewIfNeeded(true);
  const at = [.5, .25, .75, .1, .9], points = [[.5, .5]];
  for (const x of at) points.push([x, .25], [x, .75]);
  const range = document.createRange();
  range.selectNodeContents(this);
  const boxes = [...(text ? range : element).getClientRects()].map((box) => [element, box]);
  for (const label of element.labels || [])
    boxes.push(...[...label.getClientRects()].map((box) => [label, box]));
  for (const fits of [(a, b) => a === b, (a, b) => a.contains(b)])
    for (const [target, box] of boxes)
      for (const [fx, fy] of points) {
        const x = box.left + fx * box.width, y = box.top + fy * box.height;
        const hit = document.elementFromPoint(x, y);
        if (hit && fits(target, hit)) return [x, y];
      }
  return [];
}"""
# Pages listen for these two events, which a value set by a script does not send.
_FIRE = (
    "for (const one of ['input', 'change']) {}.dispatchEvent(new Event(one, {{bubbles: true}}));"
)
_FOCUS = f"""function (text) {{
  this.focus();
  if (/^(date|time|datetime-local|month|week|color|range)$/.test(this.type)) {{
    this.value = text;
    {_FIRE.format("this")}
    return 'set';
  }}
  if (this.isContentEditable) getSelection().selectAllChildren(this);
  else if (this.select && !this.readOnly) this.select();
  else return 'refused';
  if (!text) document.execCommand('delete');
  return 'typed';
}}"""
_CHOOSE = f"""function () {{
  const list = this.closest('select');
  if (!list) return false;
  this.selected = list.multiple ? !this.selected : true;
  {_FIRE.format("list")}
  return true;
}}"""
_RESTORE = """function (value) {
  if (this.type === 'checkbox' || this.type === 'radio') this.checked = Boolean(value);
  else if (this.tagName === 'OPTION') this.selected = true;
  else this.value = value;
}"""


class Seen(NamedTuple):
    """A line: its node in the browser, and the index of the group that it belongs to or -1.

    `shown` says whether the observation has it; the depth counts the lines above it that are shown.
    """

    depth: int
    role: str
    name: str
    state: str
    node: int
    group: int
    href: str
    focused: bool
    shown: bool = True

    @property
    def disabled(self) -> bool:
        return " disabled: true" in self.state


def read_tree(
    nodes: Sequence[Mapping[str, Any]], clickable: Collection[int], in_view: Mapping[int, bool]
) -> tuple[Seen, ...]:
    """Return the lines of an accessibility tree, as ``Accessibility.getFullAXTree`` returns it.

    Args:
        nodes: The tree, the root first.
        clickable: Elements that scripts listen at: they have a line whatever they are.
        in_view: Which nodes are in view; one that has no box is where the node is that it is in.
    """
    by_id = {node["nodeId"]: node for node in nodes}
    lines: list[Seen] = []

    # Depth first, without recursion: pages may be deeper than Python's stack.
    stack = [_Pending(nodes[0], parent=-1, group=-1, is_in_view=True)]
    while stack:
        node, parent, group, is_in_view = stack.pop()
        is_in_view = in_view.get(node.get("backendDOMNodeId", 0), is_in_view)
        parent_line = lines[parent] if parent >= 0 else None
        line = _line(node, parent_line, group, clickable)
        if line is not None:
            # The root is always shown; a line counts for the depth of others only where it is shown.
            depth = 0 if parent_line is None else parent_line.depth + parent_line.shown
            lines.append(line._replace(depth=depth, shown=is_in_view or parent_line is None))
            parent = len(lines) - 1
            if line.role in _GROUPS:
                group = parent

        for child_id in reversed(node.get("childIds", ())):
            if child_id in by_id:
                stack.append(_Pending(by_id[child_id], parent, group, is_in_view))
    return tuple(lines)


class _Pending(NamedTuple):
    """A node that `read_tree` still has to read."""

    node: Mapping[str, Any]
    parent: int  # the index of the line that it is in, -1 for none
    group: int  # that of the line of its group
    is_in_view: bool  # as what it is in


def _line(
    node: Mapping[str, Any], parent: Seen | None, group: int, clickable: Collection[int]
) -> Seen | None:
    """Return the line of a node; None where it has none."""
    role = re.sub(r"\W", "", str(node["role"]["value"])) if "role" in node else "none"
    name = str(node.get("name", {}).get("value", ""))
    element = node.get("backendDOMNodeId", 0)
    if node.get("ignored") or role in _NO_LINE:
        if element not in clickable or role in ("InlineTextBox", "LabelText"):
            return None
        role = "clickable"

    # A text that is the name of what it stands in was said there; the page's title stands nowhere on it.
    if role == "StaticText" and parent is not None:
        is_inner = parent.depth > 0 and parent.role != "clickable"
        repeats_parent = is_inner and plain(parent.name) == plain(name)
        if repeats_parent or parent.role in _NAMED_BY_TEXT or not name.strip():
            return None

    properties = {
        entry["name"]: entry["value"].get("value") for entry in node.get("properties", ())
    }
    state = ""
    value = str(node.get("value", {}).get("value", ""))
    if value and role in _WITH_VALUE:
        state = f" value: {quoted(value)}"
    for key in ("checked", "selected", "expanded", "pressed"):
        # A closed list says "expanded: false" of a menu that never opens here.
        is_menu = key == "expanded" and properties.get("hasPopup") == "menu"
        if key in properties and not is_menu:
            state += f" {key}: {str(properties[key]).lower()}"
    for flag in _FLAGS:
        if properties.get(flag) is True:
            state += f" {flag}: true"

    url = str(properties.get("url", ""))
    is_focused = properties.get("focused") is True
    return Seen(0, role, name, state, element, group, url, is_focused)


def _listened(document: Mapping[str, Any], names: Sequence[str]) -> set[int]:
    """Return the elements that scripts listen at, in a document of ``DOMSnapshot``."""
    # Who listens at the whole page listens for keys, or for clicks on something in it.
    nodes = document["nodes"]
    outermost = {"HTML", "BODY", "#document"}
    return {
        nodes["backendNodeId"][index]
        for index in nodes["isClickable"]["index"]
        if names[nodes["nodeName"][index]] not in outermost
    }


def _in_view(document: Mapping[str, Any]) -> dict[int, bool]:
    """Return which nodes have at least half of their area in the window: WebEvolver's rule.

    What has no area, which upstream drops, has a pixel here: pages draw controls of their own around it.
    """
    scroll_left = document["scrollOffsetX"]
    scroll_top = document["scrollOffsetY"]
    ids = document["nodes"]["backendNodeId"]
    layout = document["layout"]
    in_view: dict[int, bool] = {}
    for index, (x, y, width, height) in zip(layout["nodeIndex"], layout["bounds"], strict=True):
        left = x - scroll_left
        top = y - scroll_top
        width = max(width, 1)
        height = max(height, 1)
        visible_width = max(0, min(left + width, WIDTH) - max(left, 0))
        visible_height = max(0, min(top + height, HEIGHT) - max(top, 0))
        in_view[ids[index]] = 2 * visible_width * visible_height >= width * height
    return in_view


class Chromium:
    """The engine that plays in a browser.

    Args:
        browser: The path of Chromium; None looks for one.
        pictures: Whether `picture` shows the page after each action: JPEG in base64.
        sandbox: Whether the browser has its sandbox; None for one, except as root.
        viewport: Whether only what is in the window has a line.

    Raises:
        OptionError: There is no program at the path.
        MissingExtra: Playwright or a browser is missing.
    """

    scripted: ClassVar[bool] = False
    """Whether pages have scripts of their own, which links run and scrolling wakes."""
    listens: ClassVar[bool] = False
    """Whether elements have a line because scripts listen at them."""

    def __init__(
        self,
        browser: str | None = None,
        pictures: bool = False,
        sandbox: bool | None = None,
        viewport: bool = False,
    ) -> None:
        self.program = find_program(browser)
        self.pictures = pictures
        self.sandbox = sandbox
        self.viewport = viewport
        self.focus = 0  # the number of the line that has it
        self.picture = ""
        self.lost = False
        self.states: Mapping[str, Any] = {}
        self.url = ""
        self.address = ""
        self.dialogs: tuple[str, ...] = ()
        self._top = 0.0
        self._start = ""
        self._world: World | None = None
        self._history: tuple[str, ...] = ()
        self._values: dict[int, str | int] = {}
        self._lines: tuple[Seen, ...] = ()
        self._shown_indices: tuple[int, ...] = ()  # of the lines in the observation
        self._text = ""
        self._refusal = ""  # of a request: `_acted` raises it, once the page has been read
        self._redirects = 0
        self._tab: Tab | None = None
        self._finalizer: Any = None

    def open(self, world: World, url: str) -> None:
        """Start at an address of fresh sites."""
        self._world = world
        self.states = {}
        self._start = url
        self._history = ()
        self._values = {}
        self._do(lambda: self._opened(url), fresh=True)

    def text(self) -> str:
        """Return the page as an observation."""
        return self._text

    def act(self, move: Move) -> Effect:
        """Take an action other than ``stop``; where the page is lost with it, all is as before."""
        back = self._way_back()
        self.lost = False
        try:
            return self._do(lambda: self._acted(move))
        except Refused as refusal:
            return Effect(str(refusal))
        except PageLost as lost:
            try:
                back()
            except (EngineError, SnapshotError, Refused):
                raise lost from None
            self.lost = True
            return Effect(f"{lost}; this is the page before the action, loaded again")

    def _way_back(self) -> Callable[[], None]:
        """Return what comes back to this moment, in another tab."""
        return partial(self.load, self.save())

    def save(self) -> Any:
        """Return this moment."""
        return Moment(self.states, self.url, self._history, tuple(self._values.items()), self._top)

    def load(self, saved: Any) -> None:
        """Go back to a moment of the world that is open."""
        self.states, url, self._history, values, top = saved
        self._do(lambda: self._restored(url, dict(values), top), fresh=True)

    def toward(self, move: Move) -> Move:
        """Return an action, or the scrolling that brings its element into view."""
        if move.target == Target():
            return move
        index = find_line(move.target, [line[1:3] for line in self._lines])
        up = index < self._shown_indices[-1]
        return move if index in self._shown_indices else Move("scroll", text="up" if up else "down")

    def chain(self, selector: str) -> Sequence[tuple[str, int]]:
        """Return the first element that a CSS selector finds, and its ancestors from there up.

        Of each its tag, in lower case, and the number of its line in the page's text, 0 for none.
        """
        return self._do(lambda: self._chained(selector))

    def close(self) -> None:
        """Let go of the page; the browser stays for others."""
        if self._finalizer is not None:
            self._finalizer()
        self._tab = None
        self._finalizer = None
        self.picture = ""

    @property
    def browser(self) -> Browser:
        """The browser that is played in; started where none runs."""
        return shared(self.program, self.sandbox)

    @property
    def version(self) -> str:
        """The browser's version."""
        return self.browser.version

    @property
    def tab(self) -> Tab:
        if self._tab is None:
            raise EngineError("expected a page, found none; call env.reset()")
        return self._tab

    def _do(self, work: Callable[[], Coroutine[Any, Any, _T]], fresh: bool = False) -> _T:
        """Run on the browser's thread; after a fault the page is given up, and `fresh` makes another."""
        # A browser that has just been killed seems usable until somebody asks it: what begins anew
        # anyway is tried once more, in a new page and, if need be, a new browser.
        attempts = 2 if fresh else 1
        while True:
            attempts -= 1
            try:
                if fresh and (self._tab is None or not self._tab.browser.usable):
                    self._open_tab()
                return self.tab.browser.run(work(), STEP_SECONDS)
            except Refused:
                raise
            except BaseException as error:
                self.close()
                if isinstance(error, EngineError) or not isinstance(error, Exception):
                    raise
                if not attempts:
                    reason = str(error).partition("\n")[0]
                    failure = f"{type(error).__name__}: {reason}"
                    raise EngineError(f"the browser failed: {failure}") from error

    def _open_tab(self) -> None:
        """Let go of the page, if there is one, and open another."""
        self.close()
        self._tab = self._new_tab()
        self._finalizer = weakref.finalize(self, self._tab.end)
        self._finalizer.atexit = False  # then the whole browser ends

    def _new_tab(self) -> Tab:
        """Return a page; a browser that gives none is replaced once."""
        weak_answer = weakref.WeakMethod(self._answer)  # else the finalizer would keep the engine

        async def serve(request: PageRequest) -> Served | None:
            answer = weak_answer()
            return None if answer is None else await answer(request)

        tab = Tab(self.browser, serve)
        try:
            tab.browser.run(tab.open(), STEP_SECONDS)
        except Exception:
            tab.browser.close()
            tab = Tab(self.browser, serve)
            tab.browser.run(tab.open(), STEP_SECONDS)
        return tab

    async def _opened(self, url: str) -> None:
        self.tab.dialogs.clear()
        self.tab.allow_answers()
        await self._go(url)
        await self._look()

    async def _go(self, url: str) -> None:
        """Open an address that may be opened."""
        self._redirects = 0
        await self.tab.goto(f"http://{url}")

    async def _look(self) -> None:
        """Read the page."""
        frame, tree = await asyncio.gather(
            self.tab.send("Page.getFrameTree"), self.tab.send("Accessibility.getFullAXTree")
        )
        frame = frame["frameTree"]["frame"]
        self.address = frame["url"] + frame.get("urlFragment", "")

        # The tree knows neither listeners nor boxes; a snapshot of the document, one more call, does.
        clickable: set[int] = set()
        in_view: dict[int, bool] = {}
        if self.listens or self.viewport:
            snapshot = await self.tab.send("DOMSnapshot.captureSnapshot", computedStyles=[])
            document = snapshot["documents"][0]
            if self.listens:
                clickable = _listened(document, snapshot["strings"])
            if self.viewport:
                in_view = _in_view(document)
                self._top = document["scrollOffsetY"]

        self._lines = read_tree(tree["nodes"], clickable, in_view)
        self._shown_indices = tuple(index for index, line in enumerate(self._lines) if line.shown)
        self.focus = 0
        texts = [FIRST + self.url]
        for number, index in enumerate(self._shown_indices, 1):
            line = self._lines[index]
            if line.focused:
                self.focus = number  # the innermost one, where several have it
            indent = line.depth * "\t"
            texts.append(f"{indent}[{number}] {line.role} {quoted(line.name)}{line.state}")
        self._text = "\n".join(texts)

        self.picture = await self.tab.screenshot() if self.pictures else ""
        self.dialogs = tuple(self.tab.dialogs)
        self.tab.dialogs.clear()

    async def _acted(self, move: Move) -> Effect:
        """Take an action by the method of its verb: ``_click``, ``_type`` and so on."""
        self._refusal = ""
        self._redirects = 0
        self.tab.popup = ""
        self.tab.allow_answers()
        url_before = self.url
        effect: Effect = await getattr(self, f"_{move.verb}")(move)
        await self._settle()
        await self._look()

        # The history is kept here, as the twin keeps it: the browser's own is gone with a lost page.
        if self.url != url_before and move.verb != "goback":
            self._history = (*self._history, url_before)[-MOST_HISTORY:]
        if self._refusal:
            raise Refused(self._refusal)
        return effect

    def _allowed(self, url: str) -> str:
        """Return an address that may be opened, as `_go` takes it; else raise `Refused`."""
        return check_address(url)

    async def _settle(self) -> None:
        """Wait for what an action began; what would open in another window opens in this one."""
        await self.tab.settle()
        if popup := self.tab.popup:
            self.tab.popup = ""
            await self._go(self._allowed(popup))

    async def _chained(self, selector: str) -> Sequence[tuple[str, int]]:
        from playwright.async_api import Error

        root = (await self.tab.send("DOM.getDocument", depth=-1))["root"]
        try:
            match = await self.tab.send(
                "DOM.querySelector", nodeId=root["nodeId"], selector=selector
            )
        except Error:  # no selector of CSS
            return ()
        finally:
            await self.tab.send("DOM.disable")  # else the browser would report all that changes

        # DevTools says which children a node has, not which parent.
        nodes: dict[int, Any] = {}
        parents: dict[int, int] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            nodes[node["nodeId"]] = node
            for child in node.get("children", ()):
                parents[child["nodeId"]] = node["nodeId"]
                stack.append(child)

        numbers = {
            self._lines[index].node: number for number, index in enumerate(self._shown_indices, 1)
        }
        chain: list[tuple[str, int]] = []
        node_id = match["nodeId"]  # 0 where nothing matches
        while node_id not in (0, root["nodeId"]):  # the document is no element
            node = nodes[node_id]
            chain.append((node["localName"].lower(), numbers.get(node["backendNodeId"], 0)))
            node_id = parents[node_id]
        return chain

    async def _restored(self, url: str, values: dict[int, str | int], top: float) -> None:
        await self._go(url)
        await self._look()

        # A group's value is the index of the line that was chosen in it.
        for index, value in values.items():
            is_group = self._lines[index].role in _GROUPS
            node = self._lines[int(value) if is_group else index].node
            await self.tab.call(node, _RESTORE, True if is_group else value)
        self._values = values
        if top:
            await self.tab.evaluate(f"scrollTo({{top: {top}, behavior: 'instant'}})")
        await self._look()

    async def _answer(self, request: PageRequest) -> Served | None:
        return self._serve(request)

    def _serve(self, request: PageRequest) -> Served | None:
        """Answer a request with the page of a site."""
        if not request.document or self._world is None:
            return None  # pages of the sites have no scripts, pictures or frames to ask for

        try:
            url = check_address(request.url)
            body = request.body.decode("utf-8", "replace")
            site_request = request_of(url, request.method, body)
            self.states, response = self._world.answer(self.states, site_request)
            if response.page is not None:
                self.url = url
                self._values = {}
                html = to_html(response.page).encode("utf-8", "replace")
                return Served(response.status, response.headers, html)

            # Chromium follows a redirect by itself; where it leads is checked before it can.
            self._redirects += 1
            if self._redirects == MOST_REDIRECTS:
                raise Refused("the site redirects without end")
            check_address(response.location)
        except Refused as refusal:
            self._refusal = str(refusal)
            return None
        return Served(response.status, response.headers, b"")

    def _enabled(self, target: Target) -> tuple[int, Seen]:
        """Return the index and the line of a target; raise `Refused` where nothing can be done to it."""
        roles_and_names = [self._lines[index][1:3] for index in self._shown_indices]
        index = self._shown_indices[find_line(target, roles_and_names)]
        line = self._lines[index]
        if line.disabled or (line.group >= 0 and self._lines[line.group].disabled):
            raise Refused(f"{_label(line)} is disabled")
        return index, line

    async def _click(self, move: Move) -> Effect:
        index, line = self._enabled(move.target)
        if line.role == "option" and line.group >= 0:
            return await self._choose(index)
        if line.role in _CONTAINERS:
            await self.tab.call(line.node, "function () { this.focus?.() }")
            return Effect()  # their middle is somebody else's
        if line.role == "link" and line.href and not self.scripted:
            self._allowed(line.href)  # else it leads out of the sites, or runs a script
        await self._press(line)
        if line.role == "checkbox":
            checked = " checked: false" in line.state
            self._values[index] = checked
            return Effect("", line.name, str(checked).lower())
        if line.role == "radio":
            return self._chosen(index)
        return Effect()

    async def _press(self, line: Seen) -> None:
        """Click where the element is hit, and nothing that lies above it."""
        point = await self._call(line, _POINT)
        if not point:
            raise Refused(f"{_label(line)} is covered or has no area")
        if not _is_in_window(point):
            raise Refused(f"{_label(line)} is at no point of the window, as the page's scripts say")
        await self.tab.mouse(*point)

    async def _call(self, line: Seen, function: str, *arguments: Any) -> Any:
        """Call a function on a line's element."""
        answer = await self.tab.call(line.node, function, *arguments)
        if answer is None:
            raise Refused(f"{_label(line)} is no longer on the page")
        return answer

    async def _choose(self, index: int) -> Effect:
        """Choose an option: in a list that the browser draws by a script, since its options have no box."""
        line = self._lines[index]
        if line.role == "radio" or not await self._call(line, _CHOOSE):
            await self._press(line)
        return self._chosen(index)

    def _chosen(self, index: int) -> Effect:
        """Note which line of its group was chosen, and return that as an effect."""
        line = self._lines[index]
        if line.group < 0:
            return Effect("", "", line.name)
        self._values[line.group] = index
        return Effect("", self._lines[line.group].name, line.name)

    async def _select(self, move: Move) -> Effect:
        index, line = self._enabled(move.target)
        if line.role not in _GROUPS:
            raise Refused(f"{_label(line)} has no options")
        for option_index in self._shown_indices:
            option = self._lines[option_index]
            if option.group == index and plain(option.name) == plain(move.text):
                return await self._choose(option_index)
        raise Refused(f"{line.name!r:.80} has no option {move.text!r:.80}")

    async def _type(self, move: Move) -> Effect:
        index, line = self._enabled(move.target)
        how_typed = "refused"
        if line.role in _TYPED:
            how_typed = await self._call(line, _FOCUS, move.text)
        if how_typed == "refused":
            raise Refused(f"nothing can be typed into {_label(line)}")
        if how_typed == "typed" and move.text:
            await self.tab.send("Input.insertText", text=move.text)

        # Every page that is loaded has values of its own. Enter writes a line break into a textarea.
        values_before = self._values
        self._values[index] = move.text
        if move.enter:
            await self.tab.key("Enter", 13, "\r")
            await self.tab.settle()
            if self._values is values_before and line.role == "textbox":
                typed = await self.tab.call(line.node, "function () { return this.value }")
                self._values[index] = str(typed)
        return Effect("", line.name, move.text)

    async def _scroll(self, move: Move) -> Effect:
        if self.scripted or self.viewport:  # else nothing changes: the whole page is shown
            distance = "-innerHeight" if move.text == "up" else "innerHeight"
            try:
                await self.tab.evaluate(f"scrollBy({{top: {distance}, behavior: 'instant'}})")
            except ScriptError as error:
                raise Refused(f"the page does not scroll: {error!s:.200}") from error
        return Effect()

    async def _wait(self, move: Move) -> Effect:
        return Effect()

    async def _goback(self, move: Move) -> Effect:
        if self._history:
            *earlier, url = self._history
            await self._go(url)
            self._history = tuple(earlier)
        return Effect()

    async def _restart(self, move: Move) -> Effect:
        await self._go(self._start)
        return Effect()

    async def _goto(self, move: Move) -> Effect:
        await self._go(self._allowed(move.text))
        return Effect()


def _is_in_window(point: Any) -> bool:
    """Return whether a page's answer is a point of the window: its scripts may have made it anything."""
    if not (isinstance(point, list) and len(point) == 2):
        return False
    x, y = point
    are_numbers = type(x) in (int, float) and type(y) in (int, float)
    return are_numbers and 0 <= x <= WIDTH and 0 <= y <= HEIGHT


def _label(line: Seen) -> str:
    """Return how a refusal names a line."""
    return f"{line.role} {line.name!r:.80}"
