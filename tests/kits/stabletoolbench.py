"""Queries of our own, calls, and a language model with a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comap.errors import LanguageModelError
from comap.lm.base import Completion

# What must not be read as a path.
NAMES = ("../../secret", "/etc/passwd", "..", "a\x00b", "x" * 10_000, "．．/secret", "‥")
NAMES += ("by_id.json/../by_id", "a\\b", "C:x", ".hidden", "名" * 100, "\ud83d", "")


def call(name: str, /, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def api(name: str, required: Any = (), optional: Any = ()) -> dict[str, Any]:
    """Return upstream's record of an API of the tool Drinks; parameters are (name, type, default)."""

    def parameter(parameter_name: str, kind: str = "STRING", default: Any = "") -> dict[str, Any]:
        return {"name": parameter_name, "type": kind, "description": "", "default": default}

    return {
        "category_name": "Food",
        "tool_name": "Drinks",
        "api_name": name,
        "api_description": "A drink",
        "required_parameters": [parameter(*parts) for parts in required],
        "optional_parameters": [parameter(*parts) for parts in optional],
        "method": "GET",
    }


def query(*apis: dict[str, Any]) -> dict[str, Any]:
    relevant = [[record["tool_name"], record["api_name"]] for record in apis[:1]]
    return {
        "query_id": 1,
        "query": "Which drink is it?",
        "api_list": list(apis),
        "relevant APIs": relevant,
    }


def write_query(folder: Path, *apis: dict[str, Any]) -> Path:
    """Write official files of one query, of the group G1_tool."""
    (folder / "test_instruction").mkdir(parents=True)
    (folder / "test_instruction" / "G1_tool.json").write_text(json.dumps([query(*apis)]))
    return folder


class Scripted:
    """A language model that says its texts in turn, over and over; None is a failure."""

    name = "scripted"

    def __init__(self, *texts: str | None):
        self.texts, self.asked = texts, list[str]()

    def generate(self, requests: Any) -> list[Any]:
        return [self._reply(request.messages[-1].content) for request in requests]

    def _reply(self, text: str) -> Completion | LanguageModelError:
        self.asked.append(text)
        reply = self.texts[(len(self.asked) - 1) % len(self.texts)]
        return LanguageModelError("down") if reply is None else Completion(reply)
