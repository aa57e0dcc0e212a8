"""``Running``: an application that runs, to be watched, changed and stopped while tuples flow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape

from headgate.control.line import Line, RunOver
from headgate.errors import PipelineError, RunError
from headgate.graph.network import Output, Request
from headgate.graph.qos import QoS
from headgate.recording.admitting import Forecast
from headgate.runtime.added_queries import joining
from headgate.runtime.change import Change, HasNetwork
from headgate.runtime.report import QueryReport, Report
from headgate.scheduling.interface import Policy
from headgate.scheduling.trains import Train

FRAME = (
    '<iframe src="{address}" title="The page of the run" loading="lazy" style="width:100%;height:38em;'
    'border:1px solid #8884;border-radius:6px"></iframe>'
)
"""The page in a notebook."""


class Answer:
    """What ``running.request(…)`` returns."""

    def __init__(self, name: str, line: Line) -> None:
        self.name = name
        self._line = line
        self._request: Request | None = None
        self._reports: dict[str, QueryReport] | None = None
        self._ended = threading.Event()

    def _end(self, reports: dict[str, QueryReport] | None) -> None:
        if not self.over:
            self._reports = reports
            self._ended.set()

    @property
    def over(self) -> bool:
        """Whether the request has ended, and nothing of it is left in the run."""
        return self._ended.is_set()

    def cancel(self) -> None:
        """End it now; what it has written stays."""
        assert self._request is not None
        if not self.over:
            with suppress(RunOver):
                self._line.runner.cancel(self._request)

    def wait(self, timeout: float | None = None) -> dict[str, QueryReport]:
        """Wait for its end.  Returns the reports of its queries by name; raises if one has failed."""
        if not self._ended.wait(timeout):
            raise PipelineError(f"Request '{self.name}' has not ended within {timeout:g} seconds.")
        if self._reports is None:
            raise RunError(f"Request '{self.name}': the run ended before it did.")
        for report in self._reports.values():
            if report.error is not None:
                raise RunError(f"Request '{self.name}' failed: {report.error}") from report.error
        return self._reports


class Running:
    """What ``app.start(…)`` returns.  Leaving a ``with`` block stops the run.

    A change comes into force before the call returns, or raises and changes nothing.
    """

    def __init__(
        self, outputs_named: Callable[[Sequence[str]], list[Output]], line: Line, run: Callable[[], Report]
    ) -> None:
        self._outputs_named, self._line = outputs_named, line
        self._answers: list[Answer] = []
        self._report: Report | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(run,), name="headgate-run", daemon=True)
        self._thread.start()

    def _work(self, run: Callable[[], Report]) -> None:
        try:
            self._report = run()
        except BaseException as error:
            self._error = error
        finally:
            self._line.detach()  # it may have ended before it began
            for answer in self._answers:
                answer._end(None)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *given: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        """How it goes: the report so far."""
        return self._shown(repr)

    def _repr_html_(self) -> str:
        """The same for a notebook; evaluate it again for what has happened since.

        With a page on this machine, the page follows in a frame, to be looked at.  A notebook that is read
        later or elsewhere keeps the table.
        """
        table, widget = self._shown(Report._repr_html_), self._line.widget
        return table if widget is None or self.over else table + FRAME.format(address=escape(widget))

    def _shown(self, form: Callable[[Report], str]) -> str:
        try:
            return form(self.report()).replace("Report(", "Ended(" if self.over else "Running(", 1)
        except Exception as error:  # a run that failed has no report, and one that begins has none yet
            return f"Failed({error})" if self.over else "Running(it begins)"

    @property
    def page(self) -> str | None:
        """The address of its page with the token for changes; None if it has none, or has ended."""
        return self._line.page

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return not self._thread.is_alive()

    def set(
        self,
        *,
        policy: str | Policy | None = None,
        period: float | str | None = None,
        batch: int | Train | None = None,
        workers: int | None = None,
        qos: Mapping[str, QoS] | None = None,
    ) -> None:
        """Change what is given: ``running.set(policy="qos")``, ``running.set(period="50 ms", workers=4)``.

        ``period`` and ``batch`` are settings of the policy; one that has none is an error.  ``qos`` gives
        queries other QoS graphs.
        """
        change = Change(policy=policy, period=period, batch=batch, workers=workers, qos=qos or {})
        if (policy, period, batch, workers, qos) == (None,) * 5:
            raise PipelineError("set(): say what to change: policy=, period=, batch=, workers= or qos=.")
        self._change(change)

    def add(self, *names: str) -> None:
        """Let queries join that the application was given since: ``stream.to("new", …)``, ``add("new")``."""
        self._change(Change(add=names), self._outputs_named(names))

    def forecast(
        self,
        *names: str,
        qos: Mapping[str, QoS] | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> Forecast:
        """What would happen if these queries were added, goals were others, or more came.

        ``rates``: by source, how many times as much.  ``forecast.fits`` says whether all goals would be kept,
        ``forecast.broken`` whose would not, and by how much.  A short simulation answers; nothing changes.
        """
        line, given = self._line, {"qos": qos, "rates": rates}
        if line.forecast is None:
            raise PipelineError("This run cannot be asked for forecasts.")
        found: Forecast = line.forecast(line.runner, self._outputs_named(names), given)
        return found

    def remove(self, *names: str) -> None:
        """Remove queries; their results stay."""
        self._change(Change(remove=names))

    def request(self, request: HasNetwork) -> Answer:
        """Let an application join as a request: with its own sources, from their first tuple on.

        Its sources are finite.  It ends when they have ended and all is closed, and leaves nothing behind.
        """
        change = Change(request=request)
        network = request.network
        if not network.outputs:
            raise PipelineError(
                f"Request '{network.name}' has no queries; let a stream leave with stream.to(name, sink)."
            )
        answer = Answer(network.name, self._line)
        outputs = joining(network, answer._end)
        answer._request = outputs[0].request
        self._answers = [other for other in self._answers if not other.over] + [answer]
        self._change(change, outputs)
        if self.over:
            answer._end(None)
        return answer

    def _change(self, change: Change, outputs: Sequence[Output] = ()) -> None:
        """A run that failed says why, not only that it is over."""
        try:
            self._line.change(change, outputs)
        except RunOver:
            self.wait()
            raise

    def report(self) -> Report:
        """What has happened so far; after a run that failed, raises what ``wait`` raises."""
        try:
            return self._line.runner.snapshot() if self._report is None else self._report
        except RunOver:
            return self.wait()

    def stop(self) -> Report | None:
        """Stop it, as Ctrl-C would; what it did, or None if it failed, which ``wait`` raises."""
        if not self.over:
            with suppress(PipelineError):  # it has just ended by itself
                self._line.runner.halt()
        self._thread.join()
        return self._report

    def wait(self, timeout: float | None = None) -> Report:
        """Wait for the end of the run, and report as ``run`` does."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        if self._report is None:
            raise PipelineError(f"The run has not ended within {timeout:g} seconds.")
        return self._report
