"""A stand-in of the Hub's API on loopback: repositories, commits, listings and downloads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["StandIn"]


class StandIn:
    """The server; `files` maps a repository (``datasets/me/a``) to its commits, oldest first."""

    def __init__(self, token: str):
        self.token = token
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.requests: list[str] = []
        self.swap: dict[str, bytes] = {}
        """What is given in place of files, by name: another content than was committed."""
        stand_in = self

        class Handler(_Handler):
            home = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def at(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.commits.get(name, [])
        if revision == "main":
            return commits[-1] if commits else None
        return next((one for one in commits if one[0] == revision), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    home: StandIn

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.home.requests.append(f"POST {self.path}")
        if self.headers.get("Authorization") != f"Bearer {self.home.token}":
            said = f"bad token {self.headers.get('Authorization')}"
            return self._json({"error": said}, 401, {"X-Error-Message": said})
        if self.path == "/api/repos/create":
            told = json.loads(body)
            name = ("datasets/" if told.get("type") == "dataset" else "") + (
                f"{told['organization']}/{told['name']}"
                if told.get("organization")
                else told["name"]
            )
            self.home.commits.setdefault(name, [("0" * 40, {})])
            return self._json({"url": f"{self.home.url}/{name}", "id": name, "name": name})
        if self.path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        kind, name, verb = self._repository()
        if verb == "preupload":
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for one in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        if verb == "commit":
            return self._commit(name, body)
        return self._json({"error": f"no {kind} {verb}"}, 404)

    def do_GET(self) -> None:
        self.home.requests.append(f"GET {self.path}")
        found = re.fullmatch(r"/(.+?/.+?)/resolve/([^/]+)/(.+)", self.path.partition("?")[0])
        if found is None:
            return self._listing()
        name = found[1]
        commit = self.home.at(name, found[2])
        if commit is None or found[3] not in commit[1]:
            return self._json({"error": "no entry"}, 404, {"X-Error-Code": "EntryNotFound"})
        data = self.home.swap.get(found[3], commit[1][found[3]])
        etag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit[0], "Accept-Ranges": "none"}
        return self._send(data, 200, headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _repository(self) -> tuple[str, str, str]:
        found = re.match(r"/api/(model|dataset)s/([^/]+/[^/]+)/(\w+)", self.path)
        assert found is not None, self.path
        name = f"datasets/{found[2]}" if found[1] == "dataset" else found[2]
        return found[1], name, found[3]

    def _listing(self) -> None:
        found = re.match(
            r"/api/(model|dataset)s/([^/?]+/[^/?]+)(?:/(revision|tree)/([^/?]+))?", self.path
        )
        if found is None:
            return self._json({"error": "no such page"}, 404)
        name = f"datasets/{found[2]}" if found[1] == "dataset" else found[2]
        commit = self.home.at(name, found[4] or "main")
        if commit is None:
            code = "RevisionNotFound" if name in self.home.commits else "RepoNotFound"
            return self._json({"error": "none"}, 404, {"X-Error-Code": code})
        sha, files = commit
        if found[3] == "tree":
            tree = [
                {"type": "file", "path": path, "size": len(data), "oid": "1" * 40}
                for path, data in files.items()
            ]
            return self._json(tree)
        siblings = [
            {"rfilename": path, "size": len(data), "blobId": "1" * 40}
            for path, data in files.items()
        ]
        return self._json({"id": found[2], "sha": sha, "siblings": siblings, "private": False})

    def _commit(self, name: str, body: bytes) -> None:
        files = dict(self.home.commits[name][-1][1])
        for line in body.splitlines():
            told = json.loads(line)
            if told["key"] == "file":
                files[told["value"]["path"]] = base64.b64decode(told["value"]["content"])
            elif told["key"] == "deletedFile":
                files.pop(told["value"]["path"], None)
        sha = hashlib.sha1(body).hexdigest()
        self.home.commits[name].append((sha, files))
        url = f"{self.home.url}/{name}/commit/{sha}"
        self._json({"success": True, "commitOid": sha, "commitUrl": url})

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        told = {"Content-Type": "application/json", **(headers or {})}
        self._send(json.dumps(value).encode(), status, told)

    def _send(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
