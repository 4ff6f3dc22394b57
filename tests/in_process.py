"""The old name of builders.runs."""

from builders.runs import Done, run_main  # noqa: F401
