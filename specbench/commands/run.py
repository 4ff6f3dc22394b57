"""``specbench run``: Hydra's own flags, such as --help and --cfg, are answered before torch is imported."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.runs.composition import inform


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 1 a method failed, 2 the settings do not allow it, 130 interrupted."""
    if inform(argv):
        return 0
    from specbench.runs import cli

    return cli.main(argv)
