from __future__ import annotations

import pickle

import gymnasium
import pytest

from comap import errors
from comap.errors import CoMapError, DataNotFound, MissingExtra, suggest

CLASSES = [getattr(errors, name) for name in errors.__all__ if name != "suggest"]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_is_one_of_ours_documented_and_picklable(error: type[Exception]) -> None:
    assert issubclass(error, CoMapError)
    assert error.__doc__
    made = pickle.loads(pickle.dumps(error("expected x, found y")))
    assert type(made) is error
    assert str(made) == "expected x, found y"


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


def test_an_error_without_words_is_still_an_error() -> None:
    assert str(DataNotFound()) == ""


def test_missing_extra_names_the_command() -> None:
    error = MissingExtra.of("search", "dense retrieval")
    assert isinstance(error, MissingExtra)
    assert 'pip install "comap[search]"' in str(error)


def test_suggest() -> None:
    assert suggest("valid_sen", ["train", "valid_seen"]) == "did you mean 'valid_seen'?"
    assert suggest("q", ["a", "b"]) == "known: 'a', 'b'"
    assert suggest("q", [str(i) for i in range(20)], limit=2) == "known: '0', '1' and 18 more"
    assert suggest("q", iter(())) == "known: "
