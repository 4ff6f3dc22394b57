"""The elements of a page: tables that can be sorted, pictures, the style sheet and the scripts.

Style sheet and scripts are files beside this one. The page contains them, and allows them by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from specbench.names import printable
from specbench.report.label import Cell
from specbench.report.plots.palette import DPI
from specbench.report.table import Table


def escape(text: str) -> str:
    """Text in HTML, without what hides in a page or turns the direction of writing."""
    return html.escape(printable(text))


def table_html(table: Table, shaded: bool = False) -> str:
    """A table under the meaning of its figures; what was run is in the page's head.

    shaded: figures above 1 are tinted in one colour, those below in another.
    """
    tints = _tints([cell.text for row in table.rows for cell in row[table.labels :]]) if shaded else {}
    body = ""
    for index, row in enumerate(table.rows):
        cells = (
            tag(
                "td",
                "name" if column < table.labels else tints.get(cell.text, ""),
                cell_html(cell, (index, column) in table.best),
            )
            for column, cell in enumerate(row)
        )
        body += f"<tr>{''.join(cells)}</tr>\n"
    return sheet_html(table.meaning, table.header, table.labels, body)


def sheet_html(meaning: str, header: Sequence[str], labels: int, body: str, kind: str = "sortable") -> str:
    """A table of rows in HTML under the meaning of its figures; the first ``labels`` columns hold names."""
    head = "".join(tag("th", "name" if place < labels else "", escape(name)) for place, name in enumerate(header))
    return (
        f'<p class="soft">{escape(meaning)}</p>\n<div class="scroll"><table class="{kind}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _tints(figures: Sequence[str]) -> dict[str, str]:
    """Printed figure -> its class: gain1 to gain4 above 1, loss1 to loss4 below, by the logarithm; none in brackets."""
    logs = {text: math.log(float(text)) for text in figures if text[:1].isdigit() and float(text) > 0}
    widest = max(map(abs, logs.values()), default=0.0)
    levels = {text: round(_TINTS * value / widest) for text, value in logs.items() if widest}
    return {text: f"{'gain' if level > 0 else 'loss'}{abs(level)}" for text, level in levels.items() if level}


def tag(name: str, kind: str, inner: str) -> str:
    """An element; inner: HTML."""
    return f'<{name} class="{kind}">{inner}</{name}>' if kind else f"<{name}>{inner}</{name}>"


def cell_html(cell: Cell, best: bool) -> str:
    """A figure with its interval, bold where it is the best; a long name may break at its separators."""
    text = re.sub("[,_]", r"\g<0><wbr>", escape(cell.text))
    small = f"<small>[{escape(cell.interval)}]</small>" if cell.interval else ""
    return (f"<b>{text}</b>" if best else text) + small


_TINTS = 4
_HERE = Path(__file__).resolve().parent
_SCRIPTS = ("tables.js", "tokens.js", "tree.js", "panes.js")  # in one scope, in this order


def style() -> str:
    """The style sheet."""
    return _read("page.css")


def script() -> str:
    """All scripts in one function, so that they share names with each other and with nothing else."""
    return '"use strict";\n(() => {\n' + "\n".join(map(_read, _SCRIPTS)) + "})();\n"


def policy() -> str:
    """The Content-Security-Policy of a page: nothing is loaded, and nothing runs but our own script."""
    rules = (
        "default-src 'none'",
        "img-src data:",
        f"style-src '{_hash(style())}'",
        f"script-src '{_hash(script())}'",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As browsers hash the text between the tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


_FOLDED = "radar"  # the bars by category say it too, and with intervals
_PNG_WIDTH = slice(16, 20)  # the four bytes of a PNG's header that hold its width
_SCREEN_DPI = 125


def gallery(plots: Sequence[Path], titled: bool = False) -> str:
    """In as many columns as the screen is wide for. plots: png files. titled: they have no titles inside."""
    if not plots:
        return ""
    from specbench.report.plots.catalogue import title_of  # matplotlib, which drew them, is slow to import

    shown, folded = "", ""
    for path in plots:
        figure = _figure(path, title_of(path.stem), titled)
        shown, folded = (shown, folded + figure) if path.stem.startswith(_FOLDED) else (shown + figure, folded)
    more = f'<details><summary>Radar</summary><div class="plots">{folded}</div></details>' if folded else ""
    return f'<div class="plots">{shown}</div>{more}'


def _figure(path: Path, title: str, titled: bool) -> str:
    """An image inside the page, all at one scale. titled: its title is above it and not in it."""
    data = _light(path.read_bytes())
    width = int.from_bytes(data[_PNG_WIDTH], "big") * _SCREEN_DPI // DPI
    source = base64.b64encode(data).decode("ascii")
    head = f"<figcaption>{escape(title)}</figcaption>" if titled else ""
    return f'<figure>{head}<img src="data:image/png;base64,{source}" alt="{escape(title)}" width="{width}"></figure>\n'


def _light(png: bytes) -> bytes:
    """The picture in 256 colours, a third of the bytes: a page of many models holds hundreds of pictures."""
    from PIL import Image  # matplotlib's own, and slow to import

    memory = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(memory, "png")
    return memory.getvalue()
