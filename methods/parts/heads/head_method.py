"""What every method with trained heads is: a file that is found before the weights, and the states that it reads."""

from __future__ import annotations

from methods.parts.heads.head_file import HeadFile
from specbench.method import Method


class HeadMethod(Method):
    """head: folder, hub id, ``bundled:NAME`` or ``random``. safetensors: false reads torch files too.

    ``check`` of a subclass finds the file and names the layers.
    """

    sources: tuple[str, ...] = ("head",)

    def __init__(self, head: str | None, safetensors: bool) -> None:
        self.head, self._safetensors = head, safetensors
        self._layers: tuple[int, ...] = ()
        self._file: HeadFile | None = None

    @property
    def layer(self) -> int:
        """The hidden state that is read, where it is one."""
        return self._layers[0]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The head's file."""
        return () if self._file is None or self._file.random else (self._file.path,)
