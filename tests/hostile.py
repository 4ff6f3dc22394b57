"""A server whose answers at one path are a mode of ``scripts.lab.kinds.server``; at other paths it is ``stand_in``'s.

``server.hostile`` is the path, ``server.mode`` the mode's name, or a complete body. Requests for one token, by which a
server is tried before a run, are answered.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Iterator

import stand_in

from scripts.lab.kinds.server import ANY, JSON, METRICS, STREAM, whole

PACKED = gzip.compress(b'{"tokens": null}')
MODES = ANY | STREAM | METRICS | {"packed": lambda kind: whole(PACKED, kind, b"Content-Encoding: gzip")}


class Handler(stand_in.Handler):
    """``server.mode`` at ``server.hostile``."""

    def do_GET(self) -> None:
        """Sends the mode's bytes until the client leaves."""
        if self.path.partition("?")[0] != self.server.hostile:
            return super().do_GET()
        return self._attack()

    def do_POST(self) -> None:
        """As of GET."""
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == self.server.hostile and json.loads(raw or b"{}").get("max_tokens") != 1:
            return self._attack()
        source, self.rfile = self.rfile, io.BytesIO(raw)
        super().do_POST()
        self.rfile = source
        return None

    def _attack(self) -> None:
        mode, self.close_connection = self.server.mode, True
        if isinstance(mode, bytes):
            return self._send(mode.decode())
        with contextlib.suppress(OSError):
            for part in MODES[mode](JSON):
                self.connection.sendall(part)
        return None


@contextlib.contextmanager
def serving(path: str = "", mode: str = "", **options) -> Iterator[stand_in.ThreadingHTTPServer]:
    """A server that is hostile at ``path``."""
    with stand_in.serving(handler=Handler, **options) as server:
        server.hostile, server.mode = path, mode
        yield server
