"""Fuzzing guided by coverage, with atheris: any text that makes a reader fail is written down.

The suite's own fuzzing (``test_fuzzing.py``) draws examples; this follows which lines they reach. It is
run by hand, as long as one likes, and needs ``pip install atheris``::

    python tests/guided_fuzzing.py replies -max_total_time=600

A reader may say `CoMapError`, or that it is no text of its kind; anything else ends the run, and the
text is in a file ``crash-...`` of this folder. Options after the target are libFuzzer's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import atheris

with atheris.instrument_imports(include=["comap"], enable_loader_override=False):
    import comap  # noqa: F401  (registers the environments)
    from comap.agents import parsing
    from comap.agents.tags import read_tags
    from comap.envs.classes import class_of
    from comap.envs.stabletoolbench.answers import read_answer
    from comap.envs.stabletoolbench.calls import parse_call, write_call
    from comap.envs.stabletoolbench.serving import VirtualTools
    from comap.envs.stabletoolbench.values import NotJSON, read_json_text
    from comap.errors import CoMapError, FactSyntaxError
    from comap.facts import State
    from comap.lm.openai_answers import read_chat
    from comap.lm.openai_failures import Failure
    from comap.trajectory import Trajectory

NAMES = ("ALFWorld", "ScienceWorld", "WebShop", "StableToolBench", "SearchQA")
IDS = [f"comap/{name}-v0" for name in NAMES]
TOOLS = VirtualTools([], world=0)


def beliefs(env_id: str, text: str) -> None:
    """Fold a text, cut into pieces, into a belief; it comes back from its own text."""
    canon: Any = class_of(env_id).canonicalizer  # type: ignore[union-attr]
    first, *pieces = text.split("\x1e")
    state = canon.initial(first, pieces[0] if pieces else "")
    for action, said in zip(pieces[1::2], pieces[2::2], strict=False):
        state = canon.update(state, action, said)
    assert State.from_text(state.to_text()) == state


def actions(env_id: str, text: str) -> None:
    """A canonical action is its own."""
    canon: Any = class_of(env_id).canonicalizer  # type: ignore[union-attr]
    once = canon.action(text)
    assert canon.action(once) == once


def replies(text: str) -> None:
    """Read a reply in every way that agents do."""
    for read in (parsing.parse_action, parsing.parse_reflection, parsing.final_action_span):
        read(text)
    action = parsing.clean_action(text)
    assert action is None or parsing.clean_action(action) == action
    number = parsing.number_in(text, 0.0, 1.0)
    assert number is None or 0.0 <= number <= 1.0
    for env_id in IDS:
        read_tags(env_id, text)
    call = parse_call(text)
    if call is not None and not call.problem:
        assert parse_call(write_call(call.name, call.arguments)) is not None
    read_answer(text)


def facts(text: str) -> None:
    """Facts are read, or refused; what was read comes back."""
    with suppress(FactSyntaxError):
        state = State.from_text(text)
        assert State.from_text(state.to_text()) == state


def data(text: str) -> None:
    """Read a text as JSON: as a trajectory, as a request for tools, as a server's answer."""
    with suppress(Failure, CoMapError):
        read_chat(text.encode("utf-8", "replace"))
    try:
        told = read_json_text(text)
    except NotJSON:
        return
    json.dumps(TOOLS.answer(told))
    with suppress(CoMapError):
        Trajectory.from_json(told)


TARGETS: dict[str, Callable[[str], object]] = {"replies": replies, "facts": facts, "data": data}
for name, env_id in zip(NAMES, IDS, strict=True):
    TARGETS[f"beliefs-{name}"] = partial(beliefs, env_id)
    TARGETS[f"actions-{name}"] = partial(actions, env_id)


def main() -> None:
    """Fuzz the target that the command names."""
    target = TARGETS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if target is None:
        sys.exit(f"expected a target, one of: {', '.join(TARGETS)}")

    def one(content: bytes) -> None:
        provider = atheris.FuzzedDataProvider(content)
        target(provider.ConsumeUnicode(len(content)))

    atheris.Setup([sys.argv[0], *sys.argv[2:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
