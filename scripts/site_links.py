"""A hook of mkdocs.yml: links that lead out of docs/ are plain text on the site, which does not have those files."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page without the links that climb above docs/; their text stays."""
    above = page.file.src_uri.count("/") + 1
    return re.sub(rf"\[([^\]]+)\]\((?:\.\./){{{above}}}[^)]*\)", r"\1", markdown)
