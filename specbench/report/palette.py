"""Colours, hatches and markers of methods: safe for colour-blind readers, and the same in every plot of a report."""

from __future__ import annotations

from dataclasses import dataclass

DPI = 200

# Okabe and Ito (2008), without black and the yellow that vanishes on white.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "///", "...", "xxx")
_LINES = ("-", "--", ":", "-.")
_MARKERS = "osD^vP"


@dataclass(frozen=True, slots=True)
class Style:
    """How one method is drawn: bars by colour and hatch, lines by colour, dash and marker."""

    colour: str
    hatch: str
    line: str
    marker: str


def style(place: int) -> Style:
    """The style of the method at this place in manifest order; beyond the colours, hatches and dashes go on."""
    cycle, colour = divmod(place, len(_COLOURS))
    cycle %= len(HATCHES)
    return Style(_COLOURS[colour], HATCHES[cycle], _LINES[cycle], _MARKERS[colour])


# The phases of a step, in record.PHASES' order: forward, the target's own work, is the palest and plainest.
PARTS = (
    Style(_COLOURS[3], "", "-", "o"),
    Style(_COLOURS[1], "", "-", "o"),
    Style("#B9CFE0", "", "-", "o"),
    Style(_COLOURS[2], "...", "-", "o"),
    Style(_COLOURS[0], "///", "-", "o"),
)
