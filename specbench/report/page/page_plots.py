"""The plots inside a page, each a picture of its own data."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from specbench.report.plots.palette import DPI

_PNG_WIDTH = slice(16, 20)  # the four bytes of a PNG's header that hold its width
_SCREEN_DPI = 125
_PLOTS = {  # file name, or how it begins -> what the picture shows
    "speedup": "Speedup over vanilla",
    "mat": "Mean accepted tokens",
    "speedup_by_category": "Speedup by category",
    "mat_by_category": "Mean accepted tokens by category",
    "mat_against_fed": "Mean accepted tokens against tokens fed",
    "speedup_against_mat": "Speedup against mean accepted tokens",
    "radar": "Radar of the categories",
    "time_split": "Where a decode step's time goes",
    "accept_lengths": "Tokens emitted by a decode step",
    "accept_positions": "Acceptance by position in the draft",
    "accept_sources": "Where drafted and accepted tokens came from",
    "by_length": "Speed and acceptance by the length of the prompt or answer",
    "tails": "How unevenly long the steps of a method take",
    "growth": "Mean accepted tokens against tokens remembered",
    "latency": "Time of a forward against the tokens fed",
    "crossover": "Load at which drafting stops paying",
    "predicted": "Speedup predicted from the latency profile",
    "predicted_speedup": "Speedup predicted from the latency profile",
    "predicted_against_measured": "Predicted against measured speedup",
}


def gallery(plots: Sequence[Path]) -> str:
    """In as many columns as the screen is wide for. plots: png files."""
    return f'<div class="plots">{"".join(map(_figure, plots))}</div>'


def _figure(path: Path) -> str:
    """An image inside the page, all at one scale; its title is in the image."""
    title = html.escape(title_of(path.stem))
    data = _light(path.read_bytes())
    width = int.from_bytes(data[_PNG_WIDTH], "big") * _SCREEN_DPI // DPI
    source = base64.b64encode(data).decode("ascii")
    return f'<figure><img src="data:image/png;base64,{source}" alt="{title}" width="{width}"></figure>\n'


def _light(png: bytes) -> bytes:
    """The picture in 256 colours, a third of the bytes: a page of many models holds hundreds of pictures."""
    from PIL import Image  # matplotlib's own, and slow to import

    memory = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(memory, "png")
    return memory.getvalue()


def title_of(stem: str) -> str:
    """'latency_rows-tiny' -> 'Time of a forward against the tokens fed, rows, tiny'; unknown names as they are."""
    kind, _, where = stem.partition("-")
    known = max((name for name in _PLOTS if kind == name or kind.startswith(f"{name}_")), key=len, default="")
    name = _PLOTS.get(known, kind.replace("_", " ").capitalize())
    rest = kind.removeprefix(known).strip("_").replace("_", " ") if known else ""
    return ", ".join(filter(None, (name, rest, where)))
