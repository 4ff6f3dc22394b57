"""The HTML of a page's parts: the macros of ``templates/parts.html.j2``."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from specbench.names import printable


@cache
def templates() -> Environment:
    """The templates of a page. Every text that they print is escaped, and characters that hide or
    steer are visible.
    """
    folder = FileSystemLoader(Path(__file__).with_name("templates"))
    found = Environment(
        loader=folder,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: (
            printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    found.filters |= {
        "breakable": lambda text: Markup(
            re.sub("[,_]", r"\g<0><wbr>", html.escape(printable(text)))
        ),
        "percent": lambda value: f"{value:.2f}%",
        "slug": lambda title: title.lower().replace(" ", "-"),
    }
    found.globals["zip"] = lambda *columns: zip(*columns, strict=True)
    return found


def part(name: str, *values: Any) -> Markup:
    """The HTML of a macro of ``parts.html.j2``."""
    return Markup(
        getattr(templates().get_template("parts.html.j2").module, name)(*values).strip() + "\n"
    )
