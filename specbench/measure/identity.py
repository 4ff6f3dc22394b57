"""Removes from a run's files what identifies a user or a machine, unless ``report.identify`` is
set.

A path stays usable on the machine that wrote it: the home directory becomes ``~``, a user or host
that is a part of a path becomes ``$USER`` or ``$HOSTNAME``, and the value of a secret environment
variable becomes ``$NAME``.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.records.store import write_atomically

_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_SHORTEST = 8  # characters of a secret, at least
_NOBODY = ("", "root", "localhost")  # names that do not identify a person or machine


def hide_identity(value: Any) -> Any:
    """Nested mappings, lists and texts, without what identifies a person or a machine."""
    return _hide(value, _hidden())


def hide_in_file(path: Path) -> None:
    """Replace the same in a text file, if it exists."""
    if path.is_file():
        write_atomically(path, hide_identity(path.read_text(encoding="utf-8")))


def _hide(value: Any, hidden: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {_hide(key, hidden): _hide(entry, hidden) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(entry, hidden) for entry in value]
    if isinstance(value, str):
        for pattern, shown in hidden.items():
            value = re.sub(pattern, shown, value)
    return value


def _hidden() -> dict[str, str]:
    """Pattern -> replacement."""
    secrets = {
        re.escape(value): f"${name}"
        for name, value in os.environ.items()
        if _SECRET.search(name) and len(value) >= _SHORTEST and not os.path.exists(value)  # noqa: PTH110 (a Path raises for a long one)
    }
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (a Path raises without a home)
    places = {rf"(?<![\w.~-]){re.escape(str(home))}(?![\w.-])": "~"} if len(home.parts) > 1 else {}
    names = {"$USER": _user(), "$HOSTNAME": platform.node()}
    parts = {
        rf"(?<=/){re.escape(name)}(?=/|$)": shown
        for shown, name in names.items()
        if name not in _NOBODY
    }
    return secrets | places | parts


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry in the machine's list
        return ""
