"""Trajectories as Hugging Face datasets in the conversational formats of TRL, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ..errors import DataCorrupt, MissingExtra, OptionError
from ..lm import Message
from ..trajectory import Trajectory
from .config import AgentConfig
from .convert_rows import checked_rows, reply_of, text_of, views_of
from .prompting import converse

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["DatasetForm", "from_dataset", "to_dataset"]

DatasetForm: TypeAlias = Literal["messages", "steps", "lossless"]
"""One row an episode with ``messages``; one row a step with ``prompt`` and ``completion``; or one row
an episode with the whole trajectory as JSON text."""

_COLUMNS = {"messages": ("messages",), "steps": ("prompt", "completion")}


def to_dataset(
    trajectories: Iterable[Trajectory],
    form: DatasetForm = "messages",
    config: AgentConfig | None = None,
) -> Dataset:
    """Return trajectories as a data set that TRL trains on, or that keeps everything.

    With ``messages`` a row is an episode: the agent's prompt at its start, then replies and
    observations by turns; what follows the last reply is left out, since nothing answers it. With
    ``steps`` a row is a step: the prompt as the agent would be asked, and its reply. Both lose
    rewards, facts, predictions and notes; ``lossless`` keeps them, in the column ``trajectory``.

    Args:
        trajectories: What to convert; for supervised training, those worth imitating.
        form: Which rows.
        config: How prompts are made: style, state text, length, examples; None for the defaults, but
            without the worked example in ``messages``, where its replies would be trained on with the
            others. Rows of ``messages`` are conversations, so they need standard prompts and the
            history.

    Raises:
        OptionError: There is no such form, or it does not go with `config`.
        MissingExtra: ``datasets`` is not installed.
    """
    if form not in get_args(DatasetForm):
        listed = ", ".join(repr(name) for name in get_args(DatasetForm))
        raise OptionError(f"form must be one of {listed}, not {form!r}")
    settings = config or AgentConfig(examples=0 if form == "messages" else 1)
    if form == "messages" and (settings.prompts, settings.state_text) != ("standard", "history"):
        raise OptionError(
            "form='messages' needs prompts='standard' and state_text='history', found "
            f"{settings.prompts!r} and {settings.state_text!r}; use form='steps'"
        )
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingExtra.of("train", "a Hugging Face dataset") from error
    if form == "lossless":
        lines = [each.to_line() for each in trajectories]
        return Dataset.from_dict({"trajectory": lines})
    rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS[form]}
    for trajectory in trajectories:
        if form == "steps":
            _add_steps(rows, trajectory, settings)
        elif trajectory.steps:
            rows["messages"].append(_episode(trajectory, settings))
    return Dataset.from_dict(rows)


def from_dataset(dataset: Iterable[Any]) -> list[Trajectory]:
    """Return the trajectories of a data set that `to_dataset` made with ``form="lossless"``.

    Raises:
        DataCorrupt: A row has no whole trajectory in it; the message says which.

    Example:
        >>> from_dataset([{"messages": []}])
        Traceback (most recent call last):
        comap.errors.DataCorrupt: row 1: expected a text as 'trajectory', found none (only \
form='lossless' can be read back)
    """
    found = []
    for where, row in checked_rows(dataset, "a trajectory"):
        if row.get("trajectory") is None:
            raise DataCorrupt(
                f"{where}: expected a text as 'trajectory', found none (only form='lossless' can be "
                "read back)"
            )
        try:
            found.append(Trajectory.from_line(text_of(row, "trajectory", where)))
        except DataCorrupt as error:
            said = str(error).removeprefix(f"{where}: ")
            raise DataCorrupt(f"{where}: {said}") from error
        except (ValueError, RecursionError) as error:
            raise DataCorrupt(f"{where}: expected JSON text, found {error}") from error
    return found


def _episode(trajectory: Trajectory, config: AgentConfig) -> list[dict[str, str]]:
    """Return an episode as one conversation, whole: how much of it fits is the trainer's affair."""
    first = next(views_of(trajectory))
    messages = list(converse(first, config))
    for before, step in zip((None, *trajectory.steps), trajectory.steps, strict=False):
        if before is not None:
            messages.append(Message("user", before.observation))
        messages.append(Message("assistant", reply_of(step)))
    return _plain(messages)


def _add_steps(rows: dict[str, list[Any]], trajectory: Trajectory, config: AgentConfig) -> None:
    replies: dict[int, str] = {}
    for view, step in zip(views_of(trajectory), trajectory.steps, strict=True):
        rows["prompt"].append(_plain(converse(view, config, replies)))
        replies[view.step] = reply_of(step)
        rows["completion"].append(_plain([Message("assistant", replies[view.step])]))


def _plain(messages: Iterable[Message]) -> list[dict[str, str]]:
    return [{"role": role, "content": _encodable(content)} for role, content in messages]


def _encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which Arrow cannot hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
