from __future__ import annotations

import pickle

import gymnasium
import pytest

from comap import errors
from comap.errors import CoMapError

CLASSES = [
    thing
    for thing in vars(errors).values()
    if isinstance(thing, type) and thing.__module__ == errors.__name__
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_is_one_of_ours_documented_and_picklable(error: type[Exception]) -> None:
    assert issubclass(error, CoMapError)
    assert error.__doc__
    unpickled = pickle.loads(pickle.dumps(error("expected x, found y")))
    assert type(unpickled) is error
    assert str(unpickled) == "expected x, found y"


@pytest.mark.parametrize(
    ("error", "relative"),
    [
        (errors.DataNotFound, FileNotFoundError),
        (errors.DataCorrupt, ValueError),
        (errors.MissingExtra, ImportError),
        (errors.TaskNotFound, LookupError),
        (errors.OptionError, ValueError),
        (errors.InvalidAction, TypeError),
        (errors.NoEpisode, gymnasium.error.ResetNeeded),
        (errors.FactSyntaxError, ValueError),
    ],
)
def test_errors_are_caught_by_code_written_for_their_relatives(
    error: type[Exception], relative: type[Exception]
) -> None:
    assert issubclass(error, relative)
