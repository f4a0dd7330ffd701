"""Functions: what an agent is offered, by ToolBench's rules of names, and how arguments are checked."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...errors import DataCorrupt, check_choice
from .calls import NotJSON, read_json_text

MAX_NAME = 64
"""The most characters of a function's name: OpenAI allows no more."""

_OTHER = {
    "strict": re.compile("[^\u4e00-\u9fa5a-zA-Z0-9_]"),
    "reference": re.compile("[^\u4e00-\u9fa5a-zA-Z0-9_^]"),  # a slip of upstream's keeps "^"
}
_NOT_OPENAI = re.compile("[^a-zA-Z0-9_]")
_RUNS = re.compile("__+")
_RESERVED = frozenset(("from", "class", "return", "false", "true", "id", "and"))
_LONGEST_PART = 200
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')


def standard(name: str, compat: str = "strict") -> str:
    """Return a name in ToolBench's standard form."""
    text = _RUNS.sub("_", _OTHER[compat].sub("_", name)).lower().strip("_")
    return f"get_{text}" if text[:1].isdigit() else text


def changed(name: str) -> str:
    """Return a name that is no word of a programming language."""
    return f"is_{name}" if name in _RESERVED else name


def folder_of_category(category: str) -> str:
    """Return what the official cache calls a category's folder."""
    return re.sub("[ ,/]", "_", category).replace("__", "_")


def file_part(name: str) -> str | None:
    """Return a name if it may be one part of a path, else None: whatever it is, it leads nowhere."""
    if not name or name.startswith(".") or name.endswith((".", " ")) or _FORBIDDEN.search(name):
        return None
    try:
        if len(name.encode()) > _LONGEST_PART or unicodedata.normalize("NFKC", name) != name:
            return None
    except UnicodeEncodeError:  # half a character
        return None
    return name


COMPAT = ("strict", "reference")
"""How functions are made: with upstream's defects mended, or with them."""

FINISH = "Finish"
_LONGEST = 256
_REFERENCE_TYPES = {"NUMBER": "integer", "STRING": "string", "BOOLEAN": "boolean"}
_TYPES = {
    "number": "number",
    "float": "number",
    "integer": "integer",
    "int": "integer",
    "boolean": "boolean",
    "bool": "boolean",
    "array": "array",
    "list": "array",
    "object": "object",
}
_FINISH_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "return_type": {"type": "string", "enum": ["give_answer", "give_up_and_restart"]},
        "final_answer": {
            "type": "string",
            "description": "What the user is told; for give_answer.",
        },
    },
    "required": ["return_type"],
}
_FINISH_ABOUT = (
    "Ends the task: gives the final answer, or gives up. Nothing else is shown to the user."
)


@dataclass(frozen=True)
class Offer:
    """One function that is offered."""

    name: str
    category: str
    tool: str
    api: str
    about: str
    parameters: Mapping[str, Any]
    tool_title: str = ""

    def schema(self) -> dict[str, Any]:
        """Return the function as OpenAI's interface wants it."""
        parameters = dict(self.parameters)
        return {"name": self.name, "description": self.about, "parameters": parameters}

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(name for name in self.parameters.get("required", ()) if name)


FINISH_OFFER = Offer(FINISH, "", "", FINISH, _FINISH_ABOUT, _FINISH_SCHEMA)


def functions(query_record: Mapping[str, Any], compat: str = "strict") -> list[dict[str, Any]]:
    """Return the functions of a query, ``Finish`` last, as OpenAI's function schemas.

    With ``compat="strict"`` required and optional parameters are shown in every case, ``NUMBER`` is a
    number, names are unique, and only keys of JSON schemas occur. With ``compat="reference"``
    ``required`` begins with an empty name, optional parameters are lost where there are no required
    ones, numbers are integers, names may occur twice, and there are the keys ``optional`` and
    ``example_value``. Descriptions are in words of our own in both.

    Args:
        query_record: A query as the official files have it, with its ``api_list``.
        compat: ``"strict"`` or ``"reference"``.

    Raises:
        DataCorrupt: The record is not what it should be.
        OptionError: There is no such `compat`.

    Example:
        >>> api = {"category_name": "Food", "tool_name": "Cocktails", "api_name": "By ID",
        ...        "api_description": "One recipe", "method": "GET", "optional_parameters": [],
        ...        "required_parameters": [{"name": "id", "type": "NUMBER", "description": "Its number",
        ...                                 "default": 7}]}
        >>> first, finish = functions({"query_id": 1, "query": "?", "api_list": [api]})
        >>> first["name"], first["parameters"]["properties"], finish["name"]
        ('by_id_for_cocktails', {'is_id': {'type': 'number', 'description': 'Its number', \
'examples': [7]}}, 'Finish')
    """
    return [offer.schema() for offer in (*offers(query_record, compat), FINISH_OFFER)]


def offers(query_record: Mapping[str, Any], compat: str = "strict") -> tuple[Offer, ...]:
    """Return a query's functions without ``Finish``, with what each stands for: see `functions`."""
    check_choice("compat", compat, COMPAT)
    listed = query_record.get("api_list") if isinstance(query_record, Mapping) else None
    if not isinstance(listed, list):
        raise DataCorrupt(
            "expected a query with a list 'api_list', found "
            f"{type(query_record if listed is None else listed).__name__}; use records of the "
            "official test_instruction files"
        )
    unique_offers: list[Offer] = []
    names: set[str] = {FINISH}
    for api in listed:
        try:
            offer = _offer(api, compat)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataCorrupt(
                f"expected an API of a query with names, description and parameters, found "
                f"{api!r:.120} ({type(error).__name__}: {error}); is the file whole?"
            ) from error

        # Upstream lets two functions have one name; a call could mean either.
        name = offer.name
        number = 2
        while compat == "strict" and name in names:
            suffix = f"_{number}"
            name = offer.name[: MAX_NAME - len(suffix)] + suffix
            number += 1
        names.add(name)
        unique_offers.append(replace(offer, name=name))
    return tuple(unique_offers)


def named(listed: Iterable[Offer], name: str, compat: str) -> Offer | None:
    """Return the function of a name; upstream takes any end of a name for it."""
    match = next((offer for offer in listed if offer.name == name), None)
    if match is None and compat == "reference":
        match = next((offer for offer in listed if offer.name.endswith(name)), None)
    return match


def _offer(api: Mapping[str, Any], compat: str) -> Offer:
    """Return the function of an API, by ToolBench's rules: the end of a long name is what stays."""
    tool = str(api["tool_name"])
    title = str(api["api_name"])
    name = f"{changed(standard(title, compat))}_for_{standard(tool, compat)}"[-MAX_NAME:]
    if compat == "strict":  # upstream lets Chinese characters and "^" pass, which OpenAI refuses
        name = _NOT_OPENAI.sub("_", name)

    description = str(api.get("api_description") or "").strip()
    if description and title and compat == "reference":
        description = description.replace(title, name)
    description = description[:_LONGEST] or title

    required = list(api.get("required_parameters") or ())
    optional = list(api.get("optional_parameters") or ())
    parameters_of = _reference if compat == "reference" else _strict
    return Offer(
        name=name,
        category=str(api["category_name"]),
        tool=standard(tool, compat),
        api=changed(standard(title, compat)),
        about=f"{tool}: {description}",
        parameters=parameters_of(required, optional),
        tool_title=tool,
    )


def _strict(required: Sequence[Any], optional: Sequence[Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required_names: list[str] = []
    for index, parameter in enumerate((*required, *optional)):
        name = changed(standard(str(parameter["name"]))) or f"parameter_{index + 1}"
        if name in properties:
            continue
        properties[name] = {
            "type": _TYPES.get(str(parameter.get("type", "")).lower(), "string"),
            "description": str(parameter.get("description") or "")[:_LONGEST],
        }
        if (example := parameter.get("default")) not in (None, ""):
            properties[name]["examples"] = [example]
        if options := parameter.get("enum"):
            properties[name]["enum"] = list(options)
        if index < len(required):
            required_names.append(name)
    return {"type": "object", "properties": properties, "required": required_names}


def _reference(required: Sequence[Any], optional: Sequence[Any]) -> dict[str, Any]:
    """Return parameters with upstream's defects, as `functions` lists them."""
    properties: dict[str, Any] = {}
    names: dict[str, list[str]] = {"required": [""], "optional": [""]}
    for kind, listed in (("required", required), ("optional", optional if required else ())):
        for parameter in listed:
            name = changed(standard(str(parameter["name"]), "reference"))
            properties[name] = {
                "type": _REFERENCE_TYPES.get(str(parameter.get("type")), "string"),
                "description": str(parameter.get("description") or "")[:_LONGEST],
            }
            if str(parameter.get("default", "")):
                properties[name]["example_value"] = parameter["default"]
            names[kind].append(name)
    return {"type": "object", "properties": properties, **names}


def signature(offer: Offer) -> str:
    """Return a function on one line: its parameters with their types, and what it does."""
    parts = []
    for name, schema in offer.parameters["properties"].items():
        kind = "|".join(map(str, schema["enum"])) if schema.get("enum") else schema["type"]
        mark = "" if name in offer.required else "?"
        parts.append(f"{name}{mark}: {kind}")
    description = " ".join(offer.about.split())
    return f"{offer.name}({', '.join(parts)}): {description}"


def problem_of(offer: Offer, arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with arguments, in the words of a tool's error; empty if nothing is."""
    missing = [name for name in offer.required if name not in arguments]
    if missing:
        return f"Missing required parameter: {missing[0]}"
    schemas = offer.parameters["properties"]
    for name in arguments:
        if name not in schemas:
            return f"Unknown parameter: {name[:64]}"
    for name, schema in schemas.items():
        if name not in arguments or _fits(arguments[name], schema):
            continue
        expected = f"type {schema['type']}"
        if "enum" in schema:
            expected = "one of " + ", ".join(map(str, schema["enum"]))
        return f"Invalid parameter {name}: expected {expected}, found {str(arguments[name])[:64]!r}"
    return ""


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "number": (int, float),
    "integer": (int,),
}


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a value is valid by a parameter's schema, which has a type and perhaps an enum."""
    # JSON has one kind of number: 3.0 is a whole one. To Python True is one too; to JSON it is not.
    kind = schema["type"]
    is_whole = kind == "integer" and isinstance(value, float) and value.is_integer()
    if isinstance(value, bool) and kind != "boolean":
        return False
    if not (is_whole or isinstance(value, _JSON_TYPES[kind])):
        return False
    return "enum" not in schema or value in schema["enum"]


def coerced(offer: Offer, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with texts for numbers and numbers for texts brought into their type."""
    # Models write "5" for 5 and 5 for "5": what is meant is clear, and no call is lost to it.
    schemas = offer.parameters.get("properties", {})
    coerced_arguments = {}
    for name, value in arguments.items():
        if name in schemas:
            value = _coerced(value, schemas[name].get("type"))
        coerced_arguments[name] = value
    return coerced_arguments


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
            data = read_json_text(value)
        except NotJSON:
            return value
        if isinstance(data, expected[kind]) and not isinstance(data, bool):
            return data
    return value
