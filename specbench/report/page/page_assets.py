"""What every page carries whole: its style sheet and its scripts, files beside this one, allowed by their hashes."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SCRIPTS = ("page_tables.js", "page_tokens.js", "page_tree.js", "page_panes.js")  # in one scope, in this order


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
    """As browsers hash what stands between the tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
