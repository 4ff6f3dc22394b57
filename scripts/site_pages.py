"""A hook of mkdocs.yml that makes links out of docs/ plain text and formulas MathML.

The site does not have the files outside docs/. Browsers show MathML without a script.
"""

from __future__ import annotations

import re
from typing import Any

FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\w`\"$])\$([^$`\n]+)\$(?!\w)", re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page without the links that climb above docs/; their text stays."""
    above = page.file.src_uri.count("/") + 1
    text = re.sub(rf"!?\[([^\]]+)\]\((?:\.\./){{{above}}}[^)]*\)", r"\1", markdown)
    return FORMULA.sub(_render, text)


def _render(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    return convert(found[1] or found[2], display="block" if found[1] else "inline")
