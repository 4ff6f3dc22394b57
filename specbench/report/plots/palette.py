"""Colours, hatches and markers of methods: safe for colour-blind readers, and the same in every plot of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DPI = 200

# Of paper.mplstyle: Okabe and Ito (2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "////", "....", "xxxx")
_LINES = ("-", "--", ":", "-.")
_FILLS = ("full", "none", "left", "bottom")  # of markers
_MARKERS = "osD^vP"


@dataclass(frozen=True, slots=True)
class Style:
    """How one method is drawn: bars by colour and hatch, lines by colour and dash, marks by colour and filling."""

    colour: str
    hatch: str
    line: str
    marker: str

    @property
    def filling(self) -> Any:
        """Of its marker, as matplotlib takes it."""
        return _FILLS[_LINES.index(self.line)]

    @property
    def marks(self) -> dict[str, Any]:
        """Of a line, as matplotlib takes them."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker, "fillstyle": self.filling}

    @property
    def fill(self) -> dict[str, Any]:
        """Of a bar."""
        return {"facecolor": self.colour, "hatch": self.hatch, "edgecolor": "white", "linewidth": 0.4}


def style_of(place: int) -> Style:
    """The style of the method at this place in manifest order: neighbours differ in colour, in hatch and in dash.

    The first 24 places have different styles.
    """
    colour = place % len(_COLOURS)
    other = (place + place // 12) % len(HATCHES)
    return Style(_COLOURS[colour], HATCHES[other], _LINES[other], _MARKERS[colour])


# The phases of a step, in record.PHASES' order: forward, the target's own work, is the palest and plainest.
PARTS = (
    Style(_COLOURS[3], "", "-", "o"),
    Style(_COLOURS[1], "xxxx", "-", "o"),
    Style("#B9CFE0", "", "-", "o"),
    Style(_COLOURS[2], "....", "-", "o"),
    Style(_COLOURS[0], "////", "-", "o"),
)
