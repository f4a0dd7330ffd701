"""Training of the baselines in CoMap's Table 1, SFT, IWM, WKM and ITP, and of WebEvolver."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..sft import BaselineRun


def run_class(method: str) -> type[BaselineRun]:
    """Return the class of a method's trainings: of ``sft``, ``iwm``, ``wkm``, ``itp`` or ``webevolver``."""
    # Imported here, since whoever only reads this package's settings needs no training.
    from ..sft import SFTRun
    from .itp import ITPRun
    from .iwm import IWMRun
    from .webevolver import WebEvolverRun
    from .wkm import WKMRun

    classes: dict[str, type[BaselineRun]] = {
        "sft": SFTRun,
        "iwm": IWMRun,
        "wkm": WKMRun,
        "itp": ITPRun,
        "webevolver": WebEvolverRun,
    }
    return classes[method]
