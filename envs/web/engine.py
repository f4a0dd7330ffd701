"""What an engine is: something that shows pages and takes actions; and the addresses it may open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, urlsplit

from ...errors import EngineError
from .actions import Move, Target
from .lines import plain
from .pages import CONTROLS
from .sites import HOSTS, World
from .sites.base import Request

_LONGEST_URL = 8_000
MOST_REDIRECTS = 10
MOST_HISTORY = 50
_ACTIVE = CONTROLS | {"link", "clickable"}


class Moment(NamedTuple):
    """All that an engine needs to come back: picklable, and never changed."""

    states: Mapping[str, Any]  # of the sites, by host
    url: str  # host/path?query
    history: tuple[str, ...]
    values: tuple[tuple[int, str | int], ...]  # typed or chosen, by the index of the line
    top: float = 0.0  # how far the window is scrolled down; 0 where the whole page is shown


class Effect(NamedTuple):
    """What an action did: `refused` is the reason why nothing, `control` what was typed or chosen in."""

    refused: str = ""
    control: str = ""
    value: str = ""


class Engine(Protocol):
    """What shows pages and takes actions: the twin, or a browser."""

    @property
    def states(self) -> Mapping[str, Any]:
        """The states of the sites, by host."""
        ...

    @property
    def url(self) -> str:
        """The address, as ``host/path?query``."""
        ...

    @property
    def dialogs(self) -> tuple[str, ...]:
        """What dialogs of the page said during the last action; they are answered at once."""
        ...

    def open(self, world: World, url: str) -> None:
        """Start at an address of fresh sites; ``restart`` leads back there."""
        ...

    def act(self, move: Move) -> Effect:
        """Take an action other than ``stop``."""
        ...

    def text(self) -> str:
        """Return the page as an observation."""
        ...

    def save(self) -> Any:
        """Return this moment, picklable; later steps do not change it."""
        ...

    def load(self, saved: Any) -> None:
        """Go back to a moment of the world that is open."""
        ...

    def close(self) -> None:
        """Let go of what the engine holds outside this process; `open` starts anew."""
        ...


class PageLost(EngineError):
    """A page crashed, or does not answer; the browser itself still runs."""


class Refused(Exception):
    """An action cannot be taken; the message says why."""


def check_address(url: str, hosts: Sequence[str] = HOSTS) -> str:
    """Return an address as ``host/path?query``; raise `Refused` for one that is not allowed.

    Example:
        >>> check_address("http://shop.test/search?q=red lamp")
        'shop.test/search?q=red%20lamp'
    """
    # Without a scheme "shop.test/a" means http; "data:..." has one, though no "://".
    if "://" not in url and not url.lower().startswith(("javascript:", "data:", "about:", "file:")):
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port
    except ValueError:
        raise Refused("no address can be read of it") from None
    if parts.scheme not in ("http", "https"):
        raise Refused(f"only http and https may be opened, not {parts.scheme or 'this'}")
    if host not in hosts or port is not None or parts.username is not None:
        raise Refused(f"the host {parts.netloc!r:.80} is not allowed; allowed: {', '.join(hosts)}")

    # What browsers leave as it is in an address stays, so that both engines have the same text.
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=-._~", errors="replace")
    query = quote(parts.query, safe="/%:@!$&()*+,;=-._~?", errors="replace")
    address = f"{host}{path}?{query}" if query else f"{host}{path}"
    if len(address) > _LONGEST_URL:
        raise Refused(f"the address has more than {_LONGEST_URL:,} characters")
    return address


def request_of(url: str, method: str = "GET", body: str = "") -> Request:
    """Return the request for an address ``host/path?query`` and a body as forms send it."""
    host_and_path, _, query = url.partition("?")
    host, _, path = host_and_path.partition("/")
    parameters = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    fields = dict(parse_qsl(body, keep_blank_values=True)) if body else {}
    return Request(method, host, f"/{path}", parameters, fields)


def find_line(target: Target, lines: Sequence[tuple[str, str]]) -> int:
    """Return the index of the line, of those given by role and name, that an action names."""
    if target.number:
        if target.number > len(lines):
            raise Refused(f"there is no line [{target.number}], only {len(lines)}")
        return target.number - 1

    role = target.role.lower()
    name = plain(target.name)
    rank = target.which
    indices = _indices_of(role, name, lines)
    if len(indices) >= rank:
        return indices[rank - 1]

    # Facts number equal names, and world models speak in them: "add 2" is the second "Add".
    name_alone, _, count = name.rpartition(" ")
    if rank == 1 and count.isdecimal() and len(count) < 4:
        indices = _indices_of(role, name_alone, lines)
        if 1 < int(count) <= len(indices):
            return indices[int(count) - 1]
    raise Refused(f"there is no {target.role or 'line'} {target.name!r:.80}")


def _indices_of(role: str, name: str, lines: Sequence[tuple[str, str]]) -> list[int]:
    """Return the indices of the lines with a role and a name; without a role, of those that do things."""
    indices = []
    for index, (line_role, line_name) in enumerate(lines):
        has_role = line_role.lower() == role if role else line_role in _ACTIVE
        if has_role and plain(line_name) == name:
            indices.append(index)
    return indices
