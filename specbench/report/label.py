"""The printed form of names and figures; NaN is printed as a dash."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from specbench.records.record import CONTROL

BLANK = "\N{EN DASH}"
_DISPLAY = yaml.safe_load(
    Path(__file__).with_name("display_names.yaml").read_text(encoding="utf-8")
)
TITLES = {CONTROL: "vanilla (A/A)"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A printed figure. interval: '1.41, 1.45' or ''."""

    text: str
    interval: str = ""


def label(method: str, variant: str = "") -> str:
    """A method's name as printed: 'pld', 'pld [max_ngram=3]', 'vanilla (A/A)'."""
    title = TITLES.get(method, method)
    return f"{title} [{variant}]" if variant else title


def display_name(method: str) -> str:
    """A method as a paper names it: 'Token Recycling'; an unknown name is unchanged."""
    return str(_DISPLAY.get(method, method))


def raise_first(text: str) -> str:
    """The text with a capital first letter; names in it stay as they are."""
    return text[:1].upper() + text[1:]


def format_number(value: float, decimals: int = 2) -> str:
    """1.234 -> '1.23'; NaN -> the blank sign."""
    return BLANK if math.isnan(value) else f"{value:.{decimals}f}"


def format_milliseconds(value: float) -> str:
    """[ms] A phase may take microseconds: 0.4 -> '0.400'."""
    return format_number(value, 3)


def format_count(value: float) -> str:
    """12345.0 -> '12345'."""
    return BLANK if math.isnan(value) else f"{value:.0f}"


def format_rate(value: float) -> str:
    """[tokens/s] or [us]: three significant digits or all before the point: '5.43', '38.5',
    '1204'.
    """
    if math.isnan(value):
        return BLANK
    decimals = 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:.{decimals}f}"


def format_share(value: float) -> str:
    """0.1234 -> '12.3 %'; only an exact 1 prints as 100 %, only an exact 0 as 0 %."""
    if math.isnan(value):
        return BLANK
    if value in (0.0, 1.0):
        return f"{100 * value:.0f} %"
    return f"{min(99.9, max(0.1, 100 * value)):.1f} %"


def format_interval(low: float, high: float, decimals: int = 2) -> str:
    """'1.41, 1.45'; nothing if there is no interval or no width (vanilla's MAT)."""
    if math.isnan(low) or math.isnan(high) or low == high:
        return ""
    return f"{low:.{decimals}f}, {high:.{decimals}f}"


def format_bounded(value: float, low: float, high: float) -> str:
    """'1.43 [1.41, 1.45]'; the figure alone if there is no interval."""
    bounds = format_interval(low, high)
    return format_number(value) + (f" [{bounds}]" if bounds else "")


def break_lines(name: str, width: int) -> str:
    """A long name on several lines of at most ``width`` characters, cut after a separator if there
    is one.
    """
    lines = [""]
    for part in re.findall(r"[^_,\s-]*[_,\s-]?", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    pieces = [line[start : start + width] for line in lines for start in range(0, len(line), width)]
    return "\n".join(piece.strip() for piece in pieces if piece.strip())
