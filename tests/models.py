"""The old name of builders.models and builders.engines."""

from builders.engines import Scripted, scripts  # noqa: F401
from builders.models import *  # noqa: F403
