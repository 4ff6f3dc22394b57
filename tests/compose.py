"""The old name of builders.runs."""

from builders.runs import *  # noqa: F403
