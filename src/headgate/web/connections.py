"""Connections to the page: a bounded number, and none that keeps the others waiting.

The page shares its process, and so its open files, with the run.  Whoever opens connections and says nothing
needs no token for it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MOST_CONNECTIONS = 256
SILENT = 10.0
"""Seconds until a request must have come, with all its headers."""


class Bounded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Uvicorn's protocol with both bounds."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting: asyncio.TimerHandle | None = None
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._waiting = self.loop.call_later(SILENT, self._give_up, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _give_up(self, transport: Any) -> None:
        if self.cycle is None:  # no request has been read
            transport.abort()
