"""Traces: what a model once answered, read from a run's records, a Spec-Bench answer file, or a chat log."""

from specbench.trace.live import model_of
from specbench.trace.readers import find_trace, kind_of, read_trace
from specbench.trace.recorded import Recorded, RecordedTurn, Trace

__all__ = ["Recorded", "RecordedTurn", "Trace", "find_trace", "kind_of", "model_of", "read_trace"]
