"""Makes names of methods, models and categories, which are untrusted, safe as parts of paths and of
printed texts.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

VERSION = "0.1.0"  # of specbench
ASSETS = Path(__file__).resolve().parent / "assets"
BUNDLED = "bundled:"  # before the name of a folder in it

_NOT_IN_PATHS = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|\ud800-\udfff]+|^[.\s-]+|[.\s]+$')
_LONGEST_BYTES = 80  # a file's name has several such parts and at most 255 bytes
_DIGITS = 8
# Control characters, those that turn the direction of writing, and halves of characters; lines may
# end.
_USER = re.compile(r"(?<=://)(?:[^\s/@]*:\S*@|[^\s/@]+@)")  # of a URL; a password may have a slash
_QUERY = re.compile(r"\?[\w-]+=[^\s'\")]*")
_HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def file_name(name: str) -> str:
    """A name as a file's or folder's, or as a part of one: never a path, never too long.

    A name that has to change ends in a digest, so that no two names become one file.
    """
    found = _NOT_IN_PATHS.sub("_", name).encode()[:_LONGEST_BYTES].decode(errors="ignore")
    if found == name != "":
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{found or '_'}-{digest[:_DIGITS]}"


def comment(lines: Iterable[str]) -> str:
    """Comments of YAML or a shell, one line each: a name cannot end its comment."""
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def suite_name(path: str) -> str:
    """The default name of a suite: that of its file, with the ending, since p.jsonl and p.csv may
    both exist.
    """
    return Path(path).name or "suite"


def near(word: str, known: Sequence[str]) -> str:
    """``did you mean X? there are: ...`` for a word that is not among the known ones."""
    close = difflib.get_close_matches(word, known, 1)
    return (
        f"did you mean {close[0]}? " if close else ""
    ) + f"there are: {', '.join(known) or 'none'}"


def printable(text: str) -> str:
    r"""Text without characters that steer a terminal or hide in a page: ESC becomes ``\x1b``."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def is_dataset(text: str) -> bool:
    """Whether a text is OWNER/NAME of a data set of the hub."""
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text))


def hide_secrets(text: str) -> str:
    """Text whose URLs lack user, password and query, which may be a key."""
    return _QUERY.sub("?...", _USER.sub("", text))


class Plain(logging.Formatter):
    """Lines of a log, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without what steers a terminal."""
        return printable(super().format(record))
