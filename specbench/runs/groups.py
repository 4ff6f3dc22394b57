"""The groups of the configuration tree and their options, by the names of their files."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """The configuration tree: inside an installed package, beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def list_options(group: str) -> list[str]:
    """The options of a group; of '' the groups that a user chooses from."""
    if not group:
        return sorted(path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra")
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
