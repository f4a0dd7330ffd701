"""How hard generated games are: three presets, and any other setting by its code."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from ...errors import OptionError, suggest
from .goal import FAMILIES
from .rooms import load_table

__all__ = ["Difficulty", "presets"]

_CODE = re.compile(r"r(\d{1,3})-(\d{1,3})\.o(\d{1,3})-(\d{1,3})\.f([1-6]{1,6})(\.h)?", re.ASCII)
_LIMITS = {"receptacles": (6, 100), "objects": (3, 200)}


@dataclass(frozen=True, slots=True)
class Difficulty:
    """A difficulty setting. Rooms outside a range are made smaller or larger to fit.

    Attributes:
        receptacles: Fewest and most receptacles of a room, within 6 to 100.
        objects: Fewest and most things that can be picked up, within 3 to 200.
        families: Which families are set; games take turns among them.
        hidden: Whether all things that the goal names start in closed receptacles, where the room
            has such that can hold them.

    Raises:
        OptionError: A range is empty or outside its limits, or a family is unknown or repeated.

    Example:
        >>> Difficulty.of("easy").families
        ('pick_and_place_simple', 'look_at_obj_in_light')
        >>> own = Difficulty((8, 10), (5, 9), families=FAMILIES[:1], hidden=True)
        >>> own.name
        'r8-10.o5-9.f1.h'
        >>> Difficulty.of(own.name) == own
        True
    """

    receptacles: tuple[int, int]
    objects: tuple[int, int]
    families: tuple[str, ...] = FAMILIES
    hidden: bool = False

    def __post_init__(self) -> None:
        for field, (least, most) in _LIMITS.items():
            low, high = getattr(self, field)
            if not least <= low <= high <= most:
                raise OptionError(
                    f"expected {field}=(fewest, most) within {least} to {most}, "
                    f"found ({low}, {high})"
                )
        for family in self.families:
            if family not in FAMILIES:
                raise OptionError(f"there is no family {family!r}; {suggest(family, FAMILIES)}")
        if not self.families or len(set(self.families)) < len(self.families):
            raise OptionError(
                f"expected at least one family and each once, found {self.families!r}; "
                f"known: {', '.join(FAMILIES)}"
            )

    @property
    def name(self) -> str:
        """What task ids call it: the preset's name, or a code of all fields."""
        for name, preset in presets().items():
            if preset == self:
                return name
        families = "".join(str(FAMILIES.index(family) + 1) for family in self.families)
        low, high = self.receptacles
        few, many = self.objects
        return f"r{low}-{high}.o{few}-{many}.f{families}{'.h' if self.hidden else ''}"

    @classmethod
    def of(cls, name: str) -> Difficulty:
        """Return the difficulty that `Difficulty.name` calls so.

        Raises:
            OptionError: Nothing is called so.
        """
        if name in presets():
            return presets()[name]
        match = _CODE.fullmatch(name)
        if match is None:
            raise OptionError(
                f"there is no difficulty {name[:80]!r}; {suggest(name[:80], presets())} "
                "(or a code such as 'r8-10.o5-9.f123.h')"
            )
        low, high, few, many = map(int, match.groups()[:4])
        families = tuple(FAMILIES[int(digit) - 1] for digit in match[5])
        return cls((low, high), (few, many), families, match[6] is not None)


@functools.cache
def presets() -> dict[str, Difficulty]:
    """Return the named difficulties.

    Example:
        >>> list(presets())
        ['easy', 'normal', 'hard']
    """
    table = load_table("generator")["difficulties"]
    return {
        name: Difficulty(
            tuple(fields["receptacles"]),
            tuple(fields["objects"]),
            tuple(fields["families"]),
            fields["hidden"],
        )
        for name, fields in table.items()
    }
