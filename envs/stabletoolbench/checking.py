"""Arguments held against their schema: what fits is brought into form, what does not is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import MissingExtra
from .functions import Offer
from .values import NotJSON, read_json_text

__all__ = ["Checker", "coerced"]


class Checker:
    """Checks the arguments of calls with `jsonschema`.

    Args:
        offers: The functions that can be called.
        loose: Whether to check nothing, as upstream does.

    Raises:
        MissingExtra: The package ``jsonschema`` is not installed.

    Example:
        >>> from comap.envs.stabletoolbench.functions import FINISH_OFFER
        >>> checker = Checker([FINISH_OFFER])
        >>> checker.problem(FINISH_OFFER, {"final_answer": "7"})
        'Missing required parameter: return_type'
    """

    def __init__(self, offers: Any, loose: bool = False):
        self.loose = loose
        self._offers = {} if loose else {offer.name: offer for offer in offers}
        self._validators: dict[str, Any] = {}
        if loose:
            return
        try:
            from jsonschema import Draft202012Validator
        except ImportError as error:
            raise MissingExtra.of("tools", "checking the arguments of function calls") from error
        self._validator: Any = Draft202012Validator

    def problem(self, offer: Offer, arguments: Mapping[str, Any]) -> str:
        """Return what is wrong with arguments, in the words of a tool's error; empty if nothing is."""
        if self.loose:
            return ""
        missing = [name for name in offer.required if name not in arguments]
        if missing:
            return f"Missing required parameter: {missing[0]}"
        known = offer.parameters["properties"]
        for name in arguments:
            if name not in known:
                return f"Unknown parameter: {name[:64]}"
        error = next(iter(self._of(offer.name).iter_errors(dict(arguments))), None)
        if error is None:
            return ""
        name = str(error.absolute_path[0]) if error.absolute_path else ""
        told = known.get(name, {})
        if "enum" in told:
            expected = "one of " + ", ".join(map(str, told["enum"]))
        else:
            expected = f"type {told.get('type', 'object')}"
        found = arguments.get(name)
        return f"Invalid parameter {name}: expected {expected}, found {str(found)[:64]!r}"

    def _of(self, name: str) -> Any:
        """Return what checks the calls of a function, made when it is first called."""
        made = self._validators.get(name)
        if made is None:
            schema = {**self._offers[name].parameters, "additionalProperties": False}
            made = self._validators[name] = self._validator(schema)
        return made


def coerced(offer: Offer, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with texts for numbers and numbers for texts brought into their type.

    Example:
        >>> offer = Offer("f", "", "", "", "", {"properties": {"page": {"type": "integer"}}})
        >>> coerced(offer, {"page": "2"})
        {'page': 2}
    """
    known = offer.parameters.get("properties", {})
    return {
        name: _coerced(value, known[name].get("type")) if name in known else value
        for name, value in arguments.items()
    }


def _coerced(value: Any, kind: str | None) -> Any:
    if kind == "string":
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if isinstance(value, int | float) else value
    if kind in ("integer", "number") and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is None or not isinstance(value, str):
        return value
    if kind == "boolean" and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    expected = {"integer": (int,), "number": (int, float), "array": (list,), "object": (dict,)}
    if kind in expected:
        try:
            found = read_json_text(value)
        except NotJSON:
            return value
        if isinstance(found, expected[kind]) and not isinstance(found, bool):
            return found
    return value
