"""What trainings take as Markdown, by the same sums as ``comap train ... --dry-run``."""

from __future__ import annotations

from dataclasses import replace

from comap.trainers.needs import SHAPES, Setup, Shape, memory

__all__ = ["memory_table"]

CARD = 80e9
METHODS = {
    "SFT, LoRA": Setup(
        weights="lora", rank=8, longest=2112, pass_tokens=16_384, checkpointing=True
    ),
    "SFT, all weights": Setup(weights="full", longest=2112, pass_tokens=16_384, checkpointing=True),
    "GRPO or GRPO+PaW, LoRA": Setup(
        weights="lora", rank=16, pass_tokens=16_384, checkpointing=True
    ),
    "GRPO or GRPO+PaW, all weights": Setup(
        weights="full", reference=True, pass_tokens=16_384, checkpointing=True
    ),
    "CoMap, LoRA": Setup(
        weights="lora", rank=8, adapters=3, pass_tokens=16_384, checkpointing=True
    ),
    "CoMap, all weights": Setup(weights="full", models=3, pass_tokens=16_384, checkpointing=True),
}
"""PaW's loss is one of the same pass: it needs no memory of its own."""


def memory_table() -> str:
    """Return a table of models and methods: GB of one GPU, and the fewest GPUs of 80 GB."""
    names = [name.rpartition("/")[2].removesuffix("-Instruct") for name in SHAPES]
    lines = [f"| method | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for method, setup in METHODS.items():
        cells = [_cell(shape, setup) for shape in SHAPES.values()]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(shape: Shape, setup: Setup) -> str:
    """Return what a process needs where it is alone, and with how many it fits into the card."""
    alone = memory(shape, setup, CARD)
    size = f"{alone.size / 1e9:.0f}"
    if alone.fits:
        return f"{size}; 1"
    for processes in (2, 4, 8, 16, 32, 64):
        sharded = replace(setup, processes=processes, sharded=True)
        shared = memory(shape, sharded, CARD)
        if shared.fits:
            return f"{size}; {processes} · {shared.size / 1e9:.0f}"
    return f"{size}; –"
