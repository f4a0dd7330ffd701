"""What a registered environment id stands for: its class, that class's options, and its words."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium

from ..errors import CoMapError, OptionError, described, suggest
from ..facts import State
from ..trajectory import Turn
from .base import TextEnv
from .canon import Canonicalizer, collapse, plain_state_text


@lru_cache(maxsize=64)
def class_of(env_id: str) -> type[Any] | None:
    """Return the class of the environment with this id; None where there is none of it."""
    # The registry has ids without the module that registers them ("module:id").
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    if spec is None or spec.entry_point is None:
        return None
    entry: Any = spec.entry_point
    if isinstance(entry, str):
        entry = gymnasium.envs.registration.load_env_creator(entry)
    return entry if isinstance(entry, type) else None


def env_class(env_id: str) -> type[TextEnv]:
    """Return the class of a registered environment; `TextEnv` itself for one that is none.

    Its attributes say what the environment has: `TextEnv.test_splits`, `TextEnv.slow` and so on. Ask
    once, where an id comes in, and hand the class on. See `registered`.
    """
    try:
        cls = class_of(registered(env_id))
    except (AttributeError, ImportError) as error:
        raise OptionError(f"expected the class of {env_id!r}, found: {error}; mend that") from error
    return cls if cls is not None and issubclass(cls, TextEnv) else TextEnv


def registered(env_id: str) -> str:
    """Return the id of a registered environment; ``module:id`` imports the module first."""
    module, colon, name = env_id.rpartition(":")
    if colon:
        own_module(module, f"registers {name!r}")
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        # Those that a module has just registered come first. Without a module, only comap's
        # environments and those of the same namespace are meant: Gymnasium's own are no texts.
        namespaces = ("comap/", f"{name.partition('/')[0]}/")
        ids_by_name = {}
        for known_id in reversed(gymnasium.registry):
            if colon or known_id.startswith(namespaces):
                ids_by_name[_bare(known_id)] = known_id

        close = difflib.get_close_matches(_bare(name), ids_by_name, n=1, cutoff=0.7)
        if close:
            hint = f"did you mean {ids_by_name[close[0]]!r}?"
        else:
            hint = suggest("", ids_by_name.values())
        # Of Gymnasium's own type (NameNotFound, VersionNotFound ...), which callers may expect.
        raise type(error)(
            f"expected an environment, found {env_id!r:.120}; {hint} (your own: 'module:id', with the "
            "module that registers it)"
        ) from None
    return name


def _bare(env_id: str) -> str:
    """Return an environment's name without namespace and version, in lower case."""
    return env_id.rpartition("/")[2].partition("-v")[0].lower()


def own_module(name: str, does: str) -> Any:
    """Import a user's module; where there is none on the path, one in the working directory."""
    try:
        if find_spec(name.partition(".")[0]) is None:
            sys.path.append(str(Path.cwd()))  # the path of a console script is without it
        return import_module(name)
    except CoMapError:
        raise
    except Exception as error:
        raise OptionError(
            f"expected a module that {does}, found {described(error)}; put its folder on PYTHONPATH, or "
            "mend the module"
        ) from error


def own_class(path: str) -> type[Any]:
    """Return the class that ``module:Class`` names."""
    cls: type[Any] = _own_part(path, "class", "Class", lambda part: isinstance(part, type))
    return cls


def own_function(path: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names."""
    function: Callable[..., Any] = _own_part(path, "function", "function", callable)
    return function


def _own_part(path: str, kind: str, example: str, fits: Callable[[object], bool]) -> Any:
    """Return what ``module:name`` names; raise `OptionError` where it does not fit."""
    module, _, name = path.rpartition(":")
    attributes = vars(own_module(module, f"defines {name!r}"))
    part = attributes.get(name)
    if not fits(part):
        actual = f"no attribute {name!r}" if part is None else type(part).__name__
        candidates = [key for key in attributes if key[0] != "_" and fits(attributes[key])]
        hint = suggest(name, candidates)
        raise OptionError(
            f"expected a {kind} as 'module:{example}', found {actual} in {module}; {hint}"
        )
    return part


def not_ours(actual: str, purpose: str = "") -> str:
    """Return the message of an error about an environment that is none of comap's."""
    return (
        f"expected an environment of comap (comap.envs.TextEnv){purpose}, found {actual}; make it with "
        "gymnasium.make, and others fit for comap with comap.integrations.adapter.adapt"
    )


def idle_answer(env_id: str, last_observation: str) -> str:
    """Return what an environment answers to an action that does nothing."""
    answer: str | None = getattr(class_of(env_id), "idle_answer", TextEnv.idle_answer)
    return last_observation if answer is None else answer


def text_env_of(env_id: str) -> type[TextEnv]:
    """Return the class whose words and forms an environment has; `TextEnv` where none is registered."""
    cls = class_of(env_id)
    return cls if cls is not None and issubclass(cls, TextEnv) else TextEnv


def canonical_action(env_id: str, text: str) -> str:
    """Return the canonical form of an action, ``Canon(a)``, for comparing actions.

    Args:
        env_id: The environment; where it is not registered, or its class has no canonicalizer, only
            case, blanks and the final period are evened out.
        text: The action.

    Example:
        >>> import comap
        >>> canonical_action("comap/ALFWorld-v0", "Walk to the fridge 1.")
        'go to fridge 1'
        >>> canonical_action("another/World-v0", "Walk to the fridge 1.")
        'walk to the fridge 1'
    """
    canonicalizer = getattr(class_of(env_id), "canonicalizer", None)
    if isinstance(canonicalizer, Canonicalizer):
        return canonicalizer.action(text)
    return collapse(text)


def state_text(
    env_id: str, goal: str, history: Sequence[Turn], state: State, action: str | None = None
) -> str:
    """Return a belief as text for a prompt, as its environment words it.

    Args:
        env_id: The environment; one that is not registered gets `plain_state_text`.
        goal: The task in words.
        history: The turns so far.
        state: The belief of the present.
        action: If given, the text is for predicting what follows this action, and has what matters
            for that; else it is for choosing an action.

    Example:
        >>> import comap
        >>> state = State(frozenset({("at", "agent", "desk 1"), ("exists", "desk 1"),
        ...                          ("exists", "bed 2"), ("seen", "desk 1")}))
        >>> print(state_text("comap/ALFWorld-v0", "put a pen in desk.", (), state))
        goal: put a pen in desk.
        held: nothing
        here: desk 1
        known: desk 1 has nothing
        new: bed 2
    """
    # Any registered class may have the method, also one that is no `TextEnv`.
    in_words = getattr(class_of(env_id), "state_text", plain_state_text)
    text: str = in_words(goal, history, state, action)
    return text
