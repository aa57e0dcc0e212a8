"""Requests on Spark: each is a run of its own, beside the application's, on the same session.

A request has sources of its own and shares nothing with the application.  So it needs no place in the
application's log: with a log and a folder of its own it stops no step of the others when it comes, and leaves
nothing in the checkpoint when it ends.  Its steps are jobs of the same Spark session; Spark shares the cores
between them and the application's.  Each request is scheduled by a fresh copy of the policy in force.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from headgate.errors import PipelineError, RunError
from headgate.graph.network import Network, Output, Request
from headgate.runtime.lifecycle import KEPT_REQUESTS
from headgate.runtime.report import QueryReport, Report


class OneRun(Protocol):
    """The run of a request."""

    def run(self, line: None) -> Report: ...
    def halt(self) -> None: ...


class Requests:
    """The requests of an application.  The lock is the application's, and held unless said otherwise."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._open: dict[Request, tuple[OneRun, threading.Thread]] = {}
        self._cancelled: set[Request] = set()
        self._stopping = False
        self.ended: dict[str, dict[str, QueryReport]] = {}
        """Reports of the last requests that have ended."""
        self.notify: Callable[[], None] = lambda: None
        """Called, lock held, when a request has ended."""

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self, outputs: Sequence[Output], make: Callable[[Network], AbstractContextManager[OneRun]]
    ) -> None:
        """Let a request begin; ``make`` gives its run, and takes back what that needs."""
        request = outputs[0].request
        assert request is not None
        if request.name in [other.name for other in self._open]:
            raise PipelineError(f"This run has a request '{request.name}'; give the new one another name.")
        network = Network(request.sources, Network.of("", outputs).boxes, outputs, request.name)
        context = make(network)
        run = context.__enter__()
        thread = threading.Thread(
            target=self._work, args=(request, outputs, run, context), name="headgate-request", daemon=True
        )
        self._open[request] = run, thread
        thread.start()

    def _work(
        self,
        request: Request,
        outputs: Sequence[Output],
        run: OneRun,
        context: AbstractContextManager[OneRun],
    ) -> None:
        error: BaseException | None = None
        reports = {output.name: QueryReport(output.name) for output in outputs}
        try:
            reports = run.run(None).queries
        except BaseException as failure:
            error = failure
        finally:
            context.__exit__(None, None, None)
        with self._lock:
            del self._open[request]
            if request in self._cancelled:
                self._cancelled.discard(request)
                error = RunError(f"Request '{request.name}' was cancelled.")
            for report in reports.values():
                report.error = report.error or error
            self.ended[request.name] = reports
            while len(self.ended) > KEPT_REQUESTS:
                del self.ended[next(iter(self.ended))]
            if not self._stopping:
                self.notify()
        if not self._stopping:
            request.ended(reports)

    def cancel(self, request: Request) -> None:
        """No lock: end a request now."""
        with self._lock:
            found = self._open.get(request)
            self._cancelled |= {request} if found else set()
        if found is not None:
            found[0].halt()

    def stop(self) -> None:
        """No lock: the application's run is over, and so are its requests."""
        with self._lock:
            self._stopping = True
            found = list(self._open.values())
        for run, thread in found:
            run.halt()
            thread.join()
