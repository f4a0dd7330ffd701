"""Live sites, for which servers on 127.0.0.1 stand in; nothing here uses a network."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.envs.web import browser as browsers
from comap.envs.web import fetch as fetching
from comap.envs.web import live_chromium
from comap.envs.web.browser import PageRequest
from comap.envs.web.engine import Refused
from comap.envs.web.env import WebEnv
from comap.envs.web.fetch import fetch, is_public, resolve
from comap.errors import EngineError, OptionError, SnapshotError

LAMPS, HELP, INNER, FORBIDDEN = "www.lamps.example", "help.example", "inner.example", "evil.example"
HOSTS = (LAMPS, HELP, INNER)

HOME = f"""<title>Lamps</title><img src="/pixel.gif"><img src="http://{FORBIDDEN}/spy.gif">
<form action="/search"><input name="q" aria-label="Words"><button>Search</button></form>
<form action="/post" method="post"><input name="a" value="é &amp; b" aria-label="A"><button>Send</button>
</form><a href="http://{HELP}/hello">Help</a> <a href="http://{FORBIDDEN}/">Evil</a>
<a href="/inward">Inward</a> <a href="/outward">Outward</a> <a href="/there">There</a>
<a href="/human">Human</a> <a href="/slow">Slow</a> <a href="/big">Big</a> <a href="/round">Round</a>
<a id="spa" href="javascript:history.pushState(0, '', '/app?x=1#part')"><span class="in">App</span></a>
<button onclick="fetch('/late').then((r) => r.text()).then((t) => document.title = t)">Late</button>"""


class Site(BaseHTTPRequestHandler):
    """Answers as the host that a request names."""

    protocol_version = "HTTP/1.1"
    requests: list[tuple[str, str, dict[str, str], bytes]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        host = self.headers["Host"]
        self.requests.append((self.command, host + self.path, dict(self.headers), body))
        path = self.path.partition("?")[0]
        answer = getattr(self, "get_" + path.strip("/"), self.get_)
        answer()

    do_POST = do_GET  # noqa: N815

    def say(self, body: str | bytes, status: int = 200, *headers: tuple[str, str]) -> None:
        body = f"<meta charset=utf-8>{body}".encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in (("Content-Type", "text/html"), *headers):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def get_(self) -> None:
        self.say(HOME, 200, ("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; HttpOnly"))

    def get_search(self) -> None:
        page = f"<h1 id=found><a href='/'>Found</a></h1><p>{self.headers['Cookie']}</p>"
        body = gzip.compress(f"<title>Results</title>{page}".encode())
        self.say(body, 200, ("Content-Encoding", "gzip"))

    def get_post(self) -> None:
        self.say(f"<p>{self.requests[-1][3].decode()}</p>")

    def get_hello(self) -> None:
        self.say(f"<title>Help</title><p>Cookie {self.headers['Cookie']}</p>")

    def get_inward(self) -> None:
        self.say("", 302, ("Location", f"http://127.0.0.1:{self.server.server_port}/"))  # type: ignore[attr-defined]

    def get_read(self) -> None:
        urls = [f"http://{HELP}/hello", f"http://{LAMPS}/hello", f"http://{FORBIDDEN}/"]
        self.say(
            f"<title>Read</title><body></body><script>for (const url of {urls})"
            "fetch(url).then((r) => r.text(), String).then((t) => document.body.innerHTML += "
            "`<p>${url}: ${t.replace(/<.*?>(Help)?/g, '')}</p>`)</script>"
        )

    def get_outward(self) -> None:
        self.say("", 302, ("Location", f"http://{INNER}/"))

    def get_there(self) -> None:
        self.say("", 302, ("Location", f"http://{HELP}/hello"), ("Set-Cookie", "c=3"))

    def get_round(self) -> None:
        self.say("", 302, ("Location", "/round"))

    def get_human(self) -> None:
        self.say("<title>Just a moment...</title><p>Verify you are human to go on.</p>")

    def get_late(self) -> None:
        time.sleep(0.1)
        self.say(b"Later")

    def get_feed(self) -> None:
        self.say(
            "<title>Feed</title><h1>Top</h1><div style='height: 1000px'></div><a href='/'>Old</a><div "
            "style='height: 1000px'></div><script>onscroll = () => fetch('/late').then((r) => r.text())"
            ".then((t) => document.links[0].textContent = t)</script>"
        )

    def get_slow(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            for _ in range(50):  # a drop every now and then: no single read is slow
                time.sleep(0.05)
                self.wfile.write(b".")

    def get_big(self) -> None:
        self.say(gzip.compress(b"0" * 300_000), 200, ("Content-Encoding", "gzip"))

    def get_huge(self) -> None:
        self.say(b"0" * 300_000)

    def get_flood(self) -> None:
        self.say(
            "<title>Flood</title><h1></h1><button onclick='ask(1)'>Again</button><script>let loaded = 0, "
            "refused = 0; const ask = (number) => { for (let i = 0; i < number; i++) fetch('/large?' + i)"
            ".then((r) => r.text()).then(() => loaded++, () => refused++).then(() => "
            "document.querySelector('h1').textContent = `${loaded} loaded, ${refused} refused`) };"
            "ask(200)</script>"
        )

    def get_large(self) -> None:
        self.say(gzip.compress(b"0" * 180_000), 200, ("Content-Encoding", "gzip"))

    def get_brotli(self) -> None:
        self.say("", 200, ("Content-Encoding", "br"))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A server that stands in for two hosts; a third resolves to a private address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def stands_in(host: str, port: int) -> Sequence[tuple[str, int]]:
        if host in (LAMPS, HELP) and port == 80:
            return [("127.0.0.1", server.server_port)]
        return resolve(host, port)

    def looked_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        ip = {INNER: "127.0.0.1"}.get(host, host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))]

    monkeypatch.setattr(fetching, "resolve", stands_in)
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(fetching, "SECONDS", 0.4)
    monkeypatch.setattr(fetching, "MOST_BYTES", 200_000)
    monkeypatch.setattr(live_chromium, "_QUIET_SECONDS", 0.06)
    Site.requests.clear()
    yield server
    server.shutdown()
    server.server_close()


def ask(path: str, host: str = LAMPS, **overrides: Any) -> Any:
    request_fields = {"body": b"", "headers": {}} | overrides
    return fetch(PageRequest("GET", f"http://{host}{path}", document=True, **request_fields), HOSTS)


PRIVATE = """127.0.0.1 10.1.2.3 192.168.0.1 172.16.0.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1
240.0.0.1 255.255.255.255 ::1 :: fe80::1 fec0::1 fc00::1 ff02::1 ::ffff:10.0.0.1 64:ff9b::a00:1
2002:a00:1::1 2001:0:a00:1::1 2001:db8::1"""


@pytest.mark.parametrize("ip", PRIVATE.split())
def test_addresses_that_are_not_public(ip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_public(ip)
    address_infos = [
        (0, 0, 0, "", (address, 80)) for address in ("93.184.215.14", ip)
    ]  # one of several is enough
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: address_infos)
    with pytest.raises(Refused, match=r"'a.example' is at .* not a public address"):
        resolve("a.example", 80)


def test_what_is_connected_to_is_what_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_public("93.184.215.14") and is_public("2606:2800:21f:cb07::1")
    looked_up, connected = list[str](), list[tuple[str, int]]()

    def rebinding(host: str, port: int, **_: Any) -> list[Any]:
        looked_up.append(host)
        return [(0, 0, 0, "", ("93.184.215.14" if len(looked_up) == 1 else "127.0.0.1", port))]

    def connect(address: tuple[str, int], timeout: float) -> Any:
        connected.append(address)
        raise OSError("this test has no network")

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(socket, "create_connection", connect)
    for _ in range(2):
        with pytest.raises(Refused):
            ask("/")
    assert looked_up == [LAMPS] * 2 and connected == [("93.184.215.14", 80)]


@pytest.mark.usefixtures("server")
def test_limits_of_a_request() -> None:
    began = time.monotonic()
    for path, phrase in (
        ("/slow", "did not answer within 0.4 s"),
        ("/big", "more than 200,000 bytes"),
        ("/huge", "more than 200,000 bytes"),
        ("/brotli", "encoding 'br'"),
        ("/x y", "cannot be read: InvalidURL"),
    ):
        with pytest.raises(Refused, match=phrase):
            ask(path)
    assert time.monotonic() - began < 3
    with pytest.raises(Refused, match="1,000,000 bytes cannot be sent"):
        ask("/", body=b"x" * 1_000_001)
    with pytest.raises(Refused, match="cannot be read"):
        ask("/", headers={"X": "a\r\nHost: b"})
    for url in (f"http://{LAMPS}:81/", f"ftp://{LAMPS}/", f"http://{FORBIDDEN}/", "file:///etc/x"):
        with pytest.raises(Refused):
            fetch(PageRequest("GET", url, b"", True, {}), HOSTS)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, for a certificate")
def test_only_a_server_that_proves_its_name(
    tmp_path: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    certificate_options = (
        f"-keyout {key} -out {certificate} -days 2 -subj /CN=x -addext subjectAltName=DNS:{LAMPS}"
    )
    kind = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    subprocess.run(
        ["openssl", *kind.split(), *certificate_options.split()], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    local_address = [("127.0.0.1", server.server_port)]
    monkeypatch.setattr(
        fetching, "resolve", lambda host, port: local_address if port == 443 else []
    )
    hello = PageRequest("GET", f"https://{LAMPS}/hello", b"", True, {})
    with pytest.raises(Refused, match="SSLCertVerificationError"):
        fetch(hello, HOSTS)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert b"Cookie None" in fetch(hello, HOSTS).body
    with pytest.raises(Refused, match="SSLCertVerificationError"):
        fetch(PageRequest("GET", f"https://{HELP}/hello", b"", True, {}), HOSTS)


def node(kind: str, reference: str, **content: str) -> dict[str, Any]:
    node_content = {"reference_answer": reference, "url": f"http://{LAMPS}/", **content}
    return {"match_function_name": kind, "method": "selector", "content": node_content}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    nodes = [
        node("url_included_match", "lamps.", key=""),
        node("element_path_exactly_match", "form > button", netloc="lamps"),
        node("element_path_exactly_match", "#spa .in", netloc="lamps"),
        node("url_exactly_match", f"http://{LAMPS}/app?x=1#part", key=""),
    ]
    task = {"index": 0, "task": "Find it.", "reference_task_length": 9, "evaluation": nodes}
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([task]), "utf-8")
    return path


def make(tasks: Path, **options: Any) -> Any:
    env_options = {"engine": "chromium", "allowed_hosts": HOSTS, "sandbox": False} | options
    return gymnasium.make(
        "comap/Web-v0", benchmark="mind2web-live", tasks=tasks, **env_options
    ).unwrapped


@pytest.fixture
def env(browser: str, server: Any, tasks: Path) -> Iterator[Any]:
    env = make(tasks, browser=browser)
    yield env
    env.close()


def test_a_task_with_key_nodes(env: Any) -> None:
    observation, info = env.reset(seed=0)
    assert observation.startswith(f"URL {LAMPS}/\n[1] RootWebArea 'Lamps'")
    assert info["admissible_actions"] is None and info["url"] == f"{LAMPS}/"
    visited = []
    for action, met_nodes in (
        ("click [button 'Search']", (0, 1)),
        ("goback", (0, 1)),
        ("click [link 'App']", (0, 1, 2)),  # the selector finds a span in the link
        ("click [button 'Late']", (0, 1, 2, 3)),
    ):
        assert not (env.engine.chain("a[") or env.engine.chain("#nothing"))
        observation, reward, terminated, _, info = env.step(action)
        visited.append(info["url"].partition("/")[2])
        assert info["key_nodes"] == met_nodes and info["score"] == len(met_nodes) / 4
    assert visited == ["search?q=", "", "app?x=1", "app?x=1"]
    assert (reward, terminated, info["success"], info["verdict"]) == (1.0, True, True, "")
    assert "RootWebArea 'Later'" in observation  # what scripts load is waited for
    assert [tag for tag, _ in env.engine.chain("#spa .in")] == ["span", "a", "body", "html"]
    with pytest.raises(SnapshotError, match="play the task again"):
        env.snapshot()


def test_a_window_that_scrolls(browser: str, server: Any, tasks: Path) -> None:
    env = make(tasks, browser=browser, observation="viewport")
    env.reset(seed=0)
    top, *_ = env.step(f"goto [http://{LAMPS}/feed]")
    assert top == f"URL {LAMPS}/feed\n[1] RootWebArea 'Feed'\n\t[2] heading 'Top'"
    assert "there is no" in env.step("click [link 'Old']")[4]["refused"]
    page_text, *_ = env.step("scroll [down]")
    for _ in range(20):  # on a busy machine the page's script changes it later
        if "Later" not in page_text:
            page_text, *_ = env.step("wait")
    assert page_text == f"URL {LAMPS}/feed\n[1] RootWebArea 'Feed'\n\t[2] link 'Later'"
    assert env.step("click [2]")[4]["url"] == f"{LAMPS}/"
    env.close()


def test_cookies_and_what_is_sent(env: Any) -> None:
    env.reset(seed=0)
    observation, *_ = env.step("type [textbox 'Words'] [é] [1]")
    assert "StaticText 'a=1; b=2'" in observation
    env.step("goback")
    observation, *_ = env.step("click [button 'Send']")
    assert "StaticText 'a=%C3%A9+%26+b'" in observation
    env.step("goback")
    observation, *_ = env.step("click [link 'There']")  # through a redirect, to another host
    assert observation.startswith(f"URL {HELP}/hello") and "'Cookie None'" in observation
    headers = {address: request_headers for _, address, request_headers, _ in Site.requests}
    assert headers[f"{LAMPS}/pixel.gif"]["Cookie"] == "a=1; b=2"
    assert headers[f"{LAMPS}/search?q=%C3%A9"]["Referer"] == f"http://{LAMPS}/"
    assert not any(FORBIDDEN in address for address in headers)
    env.reset(seed=1)
    Site.requests.clear()
    env.step("click [button 'Search']")
    assert "c=3" not in str(Site.requests)  # the next episode has none of its cookies


def test_what_is_refused_leaves_the_page_as_it_is(env: Any) -> None:
    before, _ = env.reset(seed=0)
    for action, phrase in (
        ("click [link 'Evil']", f"'{FORBIDDEN}' is not allowed; allowed: {LAMPS}"),
        (f"goto [{FORBIDDEN}]", "is not allowed"),
        ("goto [http://127.0.0.1/]", "is not allowed"),
        (f"goto [http://{LAMPS}:8080/]", "is not allowed"),
        ("goto [file:///etc/hostname]", "only http and https"),
        ("click [link 'Inward']", "127.0.0.1:"),
        ("click [link 'Outward']", f"'{INNER}' is at 127.0.0.1, which is not a public address"),
        ("click [link 'Slow']", "did not answer within 0.4 s"),
        ("click [link 'Big']", "more than 200,000 bytes"),
        ("click [link 'Round']", "redirects without end"),
    ):
        observation, *_, info = env.step(action)
        assert phrase in info["refused"] and observation == before, action
    assert {address.partition("/")[0] for _, address, _, _ in Site.requests} == {LAMPS}


def test_what_scripts_may_read(env: Any) -> None:
    env.reset(seed=0)
    observation, *_ = env.step(f"goto [http://{LAMPS}/read]")
    # On a busy machine the page shows itself before its scripts have their answers.
    for _ in range(20):
        if observation.count("StaticText 'http://") < 3:
            observation, *_ = env.step("wait")
    assert f"StaticText 'http://{HELP}/hello: TypeError" in observation  # as in any browser
    assert f"StaticText 'http://{LAMPS}/hello: Cookie a=1" in observation
    assert f"StaticText 'http://{FORBIDDEN}/: TypeError" in observation


def test_a_page_that_crashes_costs_one_step(env: Any) -> None:
    before, _ = env.reset(seed=0)

    async def crash(move: Any) -> None:
        await env.engine.tab.goto("chrome://crash")

    env.engine._scroll = crash
    observation, _, terminated, truncated, info = env.step("scroll [down]")
    assert (observation, terminated, truncated) == (before, False, False)
    assert info["refused"].startswith("the page crashed; ") and "error" not in info


def test_a_page_that_asks_for_more_than_fits_into_memory(
    env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsers, "MOST_ANSWERED", 1_000_000)
    monkeypatch.setattr(browsers, "MOST_OPEN", 50)
    monkeypatch.setattr(fetching, "SECONDS", 5.0)

    def counted(action: str, total: int) -> int:
        """Take an action, and wait for all answers; return how many the page has loaded."""
        observation, *_, info = env.step(action)
        deadline = time.monotonic() + 30
        while True:
            assert not info["refused"] and time.monotonic() < deadline
            loaded, refused = map(int, re.findall(r"(\d+) (?:loaded|refused)", observation))
            if loaded + refused == total:
                return loaded
            env.engine.tab.browser.run(asyncio.sleep(0.1), 5)
            env.engine._do(env.engine._look)
            observation = env.engine.text()

    env.reset(seed=0)
    assert counted(f"goto [http://{LAMPS}/flood]", 200) == 5  # of 180,000 bytes each
    large_requests = sum("/large" in address for _, address, _, _ in Site.requests)
    assert 5 <= large_requests <= 13  # and those that were on their way

    # Each action may load as much again.
    assert counted("click [button 'Again']", 201) == 6


def test_a_check_for_humans_is_a_fault(env: Any) -> None:
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("click [link 'Human']")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert "'Verify you are human'" in info["error"] and info["error"].startswith("EngineError")
    assert "Lamps" in env.reset(seed=0)[0]


def test_a_start_that_does_not_open(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "resolve", resolve)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    with pytest.raises(EngineError, match=f"expected http://{LAMPS}/ to open.*has no address"):
        env.reset(seed=0)


def test_wrong_options(tasks: Path, browser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, phrase in (
        ({"allowed_hosts": ()}, rf'without 1 of them; write allowed_hosts=\["{LAMPS}"\]'),
        ({"allowed_hosts": (HELP,)}, rf'write allowed_hosts=\["{HELP}", "{LAMPS}"\]'),
        ({"allowed_hosts": LAMPS}, "must be a list of all hosts.* without 1"),
        ({"allowed_hosts": (f"http://{LAMPS}/",)}, "must be a list of all hosts.* without 1"),
        ({"engine": "twin"}, "use engine='chromium'"),
    ):
        with pytest.raises(OptionError, match=phrase):
            make(tasks, **options)
    with pytest.raises(OptionError, match="judge and allowed_hosts are for"):
        WebEnv(allowed_hosts=(LAMPS,))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(OptionError, match=r"as another user, or .* sandbox=False"):
        make(tasks, sandbox=None)
    recorded = {"allowed_hosts": HOSTS, "sandbox": False, "split": "test"}
    assert WebEnv.offline(recorded) == {"split": "test"}  # no record opens a host
