"""What a run's files say of who made it and where: nothing, unless ``report.identify`` asks for it.

A path keeps its meaning on the machine that wrote it: the home directory becomes ``~``, a user or host that is a part
of a path ``$USER`` or ``$HOSTNAME``, the value of a secret variable of the environment ``$NAME``.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_SHORTEST = 8  # a secret has no fewer characters
_NOBODY = ("", "root", "localhost")  # names that identify nobody


def hide_identity(value: Any) -> Any:
    """Mappings, lists and texts as they are, but for what identifies a person or a machine."""
    return _hide(value, _hidden())


def hide_in_file(path: Path) -> None:
    """The same in a file of text, if there is one."""
    if path.is_file():
        path.write_text(hide_identity(path.read_text(encoding="utf-8")), encoding="utf-8")


def _hide(value: Any, hidden: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {_hide(key, hidden): _hide(held, hidden) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(held, hidden) for held in value]
    if isinstance(value, str):
        for pattern, shown in hidden.items():
            value = re.sub(pattern, shown, value)
    return value


def _hidden() -> dict[str, str]:
    """Pattern -> what is written in its place."""
    secrets = {
        re.escape(value): f"${name}"
        for name, value in os.environ.items()
        if _SECRET.search(name) and len(value) >= _SHORTEST and not os.path.exists(value)  # noqa: PTH110 (a Path raises for a long one)
    }
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (a Path raises where there is none)
    places = {rf"(?<![\w.~-]){re.escape(str(home))}(?![\w.-])": "~"} if len(home.parts) > 1 else {}
    names = {"$USER": _user(), "$HOSTNAME": platform.node()}
    parts = {rf"(?<=/){re.escape(name)}(?=/|$)": shown for shown, name in names.items() if name not in _NOBODY}
    return secrets | places | parts


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry in the machine's list
        return ""
