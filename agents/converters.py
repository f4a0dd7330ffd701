"""Trajectories in the formats of others, and back: TRL's data sets, ShareGPT, CoMap's records."""

from __future__ import annotations

from .convert_comap import from_comap_records, to_comap_records
from .convert_datasets import DatasetForm, from_dataset, to_dataset
from .convert_sharegpt import from_sharegpt, to_sharegpt

__all__ = [
    "DatasetForm",
    "from_comap_records",
    "from_dataset",
    "from_sharegpt",
    "to_comap_records",
    "to_dataset",
    "to_sharegpt",
]
