"""Functions of official queries: upstream's names, its defects mended, and its defects on request."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from comap.envs.stabletoolbench import functions
from comap.envs.stabletoolbench.functions import (
    _TYPES,
    FINISH_OFFER,
    _fits,
    coerced,
    offers,
    problem_of,
    standard,
)
from comap.envs.stabletoolbench.tasks import read_queries
from comap.errors import DataCorrupt
from kits.stabletoolbench import api

GROUPS = ("G1_instruction", "G1_category", "G1_tool", "G2_instruction")


@pytest.fixture(scope="module")
def queries(official):
    """All official queries that are here."""
    records_by_group = [
        read_queries(official / "test_instruction" / f"{group}.json") for group in GROUPS
    ]
    return [record for group in records_by_group for record in group.values()]


def functions_of(*apis, compat="strict"):
    return functions({"api_list": list(apis)}, compat)


def test_all_official_queries_have_sound_functions(queries):
    assert len(queries) == 580
    offered = 0
    for record in queries:
        schemas = functions(record)
        assert len(schemas) == len(record["api_list"]) + 1 and schemas[-1]["name"] == "Finish"
        names = [function["name"] for function in schemas]
        assert len(set(names)) == len(names)
        for function, listed in zip(schemas, record["api_list"], strict=False):
            offered += 1
            if offered % 20 == 0:
                jsonschema.Draft202012Validator.check_schema(function["parameters"])
            assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", function["name"])
            assert set(function["parameters"]) == {"type", "properties", "required"}
            parameters = listed["required_parameters"] + listed["optional_parameters"]
            distinct = {standard(parameter["name"]) for parameter in parameters}
            assert len(function["parameters"]["properties"]) >= len(distinct - {""})
    assert offered > 2900


def test_names_are_those_of_reference_answers(official, queries):
    by_id = {record["query_id"]: record for record in queries}
    folder = official / "example_answers" / "answer" / "virtual_chatgpt_cot" / "G1_instruction"
    files = sorted(folder.glob("*.json"))
    assert len(files) == 3
    for path in files:
        reference_functions = json.loads(path.read_bytes())["answer_generation"]["function"]
        record = by_id[int(path.name.partition("_")[0])]
        for compat in ("strict", "reference"):
            function_schemas = functions(record, compat)
            assert [function["name"] for function in function_schemas] == [
                function["name"] for function in reference_functions
            ]
            for ours, theirs in zip(function_schemas[:-1], reference_functions, strict=False):
                names = list(ours["parameters"]["properties"])
                their_names = list(theirs["parameters"]["properties"])
                assert names == their_names or (compat == "strict" and not their_names)


def test_defects_are_mended_and_there_on_request():
    only_optional = api("List", optional=[("Page", "NUMBER", 1.5), ("id",)])
    assert list(functions_of(only_optional)[0]["parameters"]["properties"]) == ["page", "is_id"]
    lost = functions_of(only_optional, compat="reference")[0]["parameters"]
    assert lost["properties"] == {} and lost["required"] == [""]
    mixed_api = api("Get", required=[("q", "NUMBER", 7)], optional=[("from", "ENUM")])
    mended, unmended = (
        functions_of(mixed_api, compat=compat)[0]["parameters"]
        for compat in ("strict", "reference")
    )
    assert mended["required"] == ["q"] and mended["properties"]["q"]["type"] == "number"
    assert unmended["required"] == ["", "q"] and unmended["optional"] == ["", "is_from"]
    assert unmended["properties"]["q"] == {"type": "integer", "description": "", "example_value": 7}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"q": 7}, unmended)
    jsonschema.validate({"q": 7.5}, mended)


@pytest.mark.parametrize(
    "record", [None, [], {}, {"api_list": 3}, {"api_list": [{}]}, {"api_list": [None]}]
)
def test_broken_records_are_told(record):
    with pytest.raises(DataCorrupt, match="expected"):
        functions(record)


def test_arguments_are_checked_and_brought_into_form():
    kinds = {
        "n": "INTEGER",
        "x": "NUMBER",
        "b": "BOOLEAN",
        "a": "ARRAY",
        "o": "OBJECT",
        "s": "STRING",
    }
    listed = list(kinds.items())
    (offer,) = offers({"api_list": [api("All", optional=listed)]})
    raw_arguments = {"n": "3", "x": "2.5", "b": "True", "a": "[1]", "o": '{"k": 1}', "s": 12}
    formed = coerced(offer, raw_arguments)
    assert formed == {"n": 3, "x": 2.5, "b": True, "a": [1], "o": {"k": 1}, "s": "12"}
    assert problem_of(offer, formed) == ""
    assert coerced(offer, {"n": 4.0}) == {"n": 4}
    for wrong in ({"n": "three"}, {"n": 1.5}, {"n": True}, {"b": 1}, {"a": "x"}, {"s": []}):
        problem = problem_of(offer, coerced(offer, wrong))
        assert problem.startswith(f"Invalid parameter {next(iter(wrong))}: expected type"), wrong
    assert problem_of(offer, {"zz": 1}) == "Unknown parameter: zz"
    assert "give_answer" in problem_of(FINISH_OFFER, {"return_type": "done"})


VALUES = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    1.5,
    float("inf"),
    float("nan"),
    10**30,
    "",
    "1",
    [],
    [1],
    {},
]


@pytest.mark.parametrize("kind", sorted({*_TYPES.values(), "string"}))
def test_values_are_valid_where_jsonschema_finds_them_so(kind):
    for schema in ({"type": kind}, {"type": kind, "enum": [1, True, "1", [1]]}):
        for value in VALUES:
            valid = jsonschema.Draft202012Validator(schema).is_valid(value)
            assert _fits(value, schema) == valid, (schema, value)
