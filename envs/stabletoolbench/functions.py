"""Functions: what an agent is offered, made of a query's ``api_list`` by ToolBench's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import DataCorrupt, OptionError, suggest
from .names import MAX_NAME, changed, function_name, parameter_name, standard

__all__ = ["COMPAT", "FINISH", "Offer", "functions", "offers", "signature"]

COMPAT = ("strict", "reference")
"""How functions are made: with upstream's defects mended, or with them."""

FINISH = "Finish"
"""The function that ends an episode."""

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
    """One function that is offered.

    Attributes:
        name: What agents call it.
        category: As the query names it.
        tool: In standard form.
        api: In standard form.
        about: Its description.
        parameters: A JSON schema of its arguments.
        tool_title: The tool's own name, and `api_title` the API's.
        api_title: See above.
    """

    name: str
    category: str
    tool: str
    api: str
    about: str
    parameters: Mapping[str, Any]
    tool_title: str = ""
    api_title: str = ""

    def schema(self) -> dict[str, Any]:
        """Return the function as OpenAI's interface wants it."""
        parameters = dict(self.parameters)
        return {"name": self.name, "description": self.about, "parameters": parameters}

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The names of the parameters that a call must have."""
        return tuple(name for name in self.parameters.get("required", ()) if name)


FINISH_OFFER = Offer(FINISH, "", "", FINISH, _FINISH_ABOUT, _FINISH_SCHEMA)


def functions(query_record: Mapping[str, Any], compat: str = "strict") -> list[dict[str, Any]]:
    """Return the functions of a query, ``Finish`` last, as OpenAI's function schemas.

    With ``compat="strict"`` required and optional parameters are told in every case, ``NUMBER`` is a
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
    if compat not in COMPAT:
        raise OptionError(f"compat cannot be {compat!r}; {suggest(str(compat), COMPAT)}")
    listed = query_record.get("api_list") if isinstance(query_record, Mapping) else None
    if not isinstance(listed, list):
        raise DataCorrupt(
            "expected a query with a list 'api_list', found "
            f"{type(query_record if listed is None else listed).__name__}; use records of the "
            "official test_instruction files"
        )
    found: list[Offer] = []
    taken: set[str] = {FINISH}
    for api in listed:
        try:
            offer = _offer(api, compat)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataCorrupt(
                f"expected an API of a query with names, description and parameters, found "
                f"{api!r:.120} ({type(error).__name__}: {error}); is the file whole?"
            ) from error
        if compat == "strict" and offer.name in taken:
            offer = _renamed(offer, taken)
        taken.add(offer.name)
        found.append(offer)
    return tuple(found)


def _renamed(offer: Offer, taken: set[str]) -> Offer:
    """Return the offer with a name that none has yet."""
    number = 2
    while (name := offer.name[: MAX_NAME - len(f"_{number}")] + f"_{number}") in taken:
        number += 1
    return Offer(**{**_fields(offer), "name": name})


def _fields(offer: Offer) -> dict[str, Any]:
    return {name: getattr(offer, name) for name in Offer.__dataclass_fields__}


def _offer(api: Mapping[str, Any], compat: str) -> Offer:
    tool, title = str(api["tool_name"]), str(api["api_name"])
    name = function_name(title, tool, compat)
    about = str(api.get("api_description") or "").strip()
    if about and title:
        about = about.replace(title, name) if compat == "reference" else about
    about = f"{tool}: {about[:_LONGEST]}" if about else f"{tool}: {title}"
    required = list(api.get("required_parameters") or ())
    optional = list(api.get("optional_parameters") or ())
    parameters = (_reference if compat == "reference" else _strict)(required, optional)
    return Offer(
        name,
        str(api["category_name"]),
        standard(tool, compat),
        changed(standard(title, compat)),
        about,
        parameters,
        tool,
        title,
    )


def _strict(required: Sequence[Any], optional: Sequence[Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    needed: list[str] = []
    for place, parameter in enumerate((*required, *optional)):
        name = parameter_name(str(parameter["name"])) or f"parameter_{place + 1}"
        if name in properties:
            continue
        kind = _TYPES.get(str(parameter.get("type", "")).lower(), "string")
        told: dict[str, Any] = {
            "type": kind,
            "description": str(parameter.get("description") or "")[:_LONGEST],
        }
        if (example := parameter.get("default")) not in (None, ""):
            told["examples"] = [example]
        if options := parameter.get("enum"):
            told["enum"] = list(options)
        properties[name] = told
        if place < len(required):
            needed.append(name)
    return {"type": "object", "properties": properties, "required": needed}


def _reference(required: Sequence[Any], optional: Sequence[Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    names: dict[str, list[str]] = {"required": [""], "optional": [""]}
    for kind, listed in (("required", required), ("optional", optional if required else ())):
        for parameter in listed:
            name = parameter_name(str(parameter["name"]), "reference")
            told: dict[str, Any] = {
                "type": _REFERENCE_TYPES.get(str(parameter.get("type")), "string"),
                "description": str(parameter.get("description") or "")[:_LONGEST],
            }
            if str(parameter.get("default", "")):
                told["example_value"] = parameter["default"]
            properties[name] = told
            names[kind].append(name)
    return {"type": "object", "properties": properties, **names}


def signature(offer: Offer) -> str:
    """Return a function on one line: its parameters with their types, and what it does.

    Example:
        >>> signature(FINISH_OFFER)[:60]
        'Finish(return_type: give_answer|give_up_and_restart, final_a'
    """
    parts = []
    for name, told in offer.parameters["properties"].items():
        kind = "|".join(map(str, told["enum"])) if told.get("enum") else told["type"]
        parts.append(f"{name}{'' if name in offer.required else '?'}: {kind}")
    about = " ".join(offer.about.split())
    return f"{offer.name}({', '.join(parts)}): {about}"
