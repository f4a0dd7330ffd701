"""The Hugging Face Hub: trajectories and models go there and come back, checked, with cards.

What goes to the Hub can go to a folder instead (``local:DIR``), in the same layout. Weights are safe
tensors, all else is JSON, Parquet or plain text; nothing is ever unpickled.
"""

from __future__ import annotations

from .episodes import load_trajectories, push_trajectories
from .manifest import Loaded, Pushed
from .models import load_model, push_model

__all__ = [
    "Loaded",
    "Pushed",
    "load_model",
    "load_trajectories",
    "push_model",
    "push_trajectories",
]
