"""What TensorBoard finds in a folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

TRACKER = "tensorboard" if find_spec("tensorboard") else "none"


def curves_of(out: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each curve of a training or run; of doubles what TensorBoard keeps of them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    return {
        name: [(point.step, point.value) for point in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def text_of(out: Path) -> str:
    """Return the settings as TensorBoard's page of texts shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    (event,) = events.Tensors("settings")
    return event.tensor_proto.string_val[0].decode()
