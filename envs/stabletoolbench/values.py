"""Values: one written form for what answers, arguments and facts tell; JSON that cannot harm."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, NoReturn

__all__ = ["MAX_DEPTH", "NotJSON", "canonical_json", "digest", "read_json_text", "written"]

MAX_DEPTH = 64
"""JSON that is nested deeper is refused."""

_NUMBER = re.compile(r"[-+]?\d{1,15}(\.\d{1,15})?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


class NotJSON(ValueError):
    """A text is no JSON that is read here."""


def _refuse_constant(name: str) -> NoReturn:
    raise NotJSON(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def read_json_text(text: str) -> Any:
    """Return the data of a JSON text from anywhere.

    Control characters within texts are let pass, since models write them; NaN, infinities, numbers of
    thousands of digits and deep nesting are not.

    Raises:
        NotJSON: The text is no such JSON; its message tells where.

    Example:
        >>> read_json_text('{"page": 2}')
        {'page': 2}
    """
    try:
        data = _DECODER.decode(text)
    except RecursionError:
        raise NotJSON("nested too deeply") from None
    except ValueError as error:
        raise NotJSON(str(error)) from None
    if _too_deep(data):
        raise NotJSON("nested too deeply")
    return data


def _too_deep(data: Any) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for item in level
            if isinstance(item, dict | list)
            for part in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def canonical_json(data: Any) -> str:
    """Return the one JSON text of some data: keys in order, no blanks.

    Example:
        >>> canonical_json({"b": True, "a": 1})
        '{"a":1,"b":true}'
    """
    return _ENCODER.encode(data)


def digest(data: Any) -> str:
    """Return eight hexadecimal digits that stand for some data.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(canonical_json(data).encode("utf-8", "replace")).hexdigest()[:8]


def written(value: Any) -> str:
    """Return the form in which values are compared: numbers to two places, texts in lower case.

    Example:
        >>> written(120.0), written(" 1,250.50 "), written(True), written("New  York.")
        ('120', '1250.5', 'true', 'new york')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else "a large number"
    if isinstance(value, float):
        return _number(value)
    if not isinstance(value, str):
        return canonical_json(value).lower()
    text = " ".join(value.lower().split()).rstrip(".")
    number = _THOUSANDS.sub("", text)
    if _NUMBER.fullmatch(number):
        sure = number.startswith("0") and number[1:2].isdigit()  # a code such as 007 is no number
        return text if sure else _number(float(number))
    return text


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "no number"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
