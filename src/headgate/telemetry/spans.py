"""OpenTelemetry traces: a span for the run, below it one for each step on Spark, or for calls elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from headgate.errors import PipelineError
from headgate.runtime.core import Core
from headgate.runtime.instructions import Instruction
from headgate.runtime.report import Report
from headgate.runtime.stimuli import CallEnded, Stimulus
from headgate.telemetry.telling import Telling

CALLS = 100
"""Spans of calls in a second: threads make thousands of them."""


class Traces:
    """``app.run(telemetry=[hg.traces()])``: spans go to the tracer provider of the process.

    ``calls``: at most so many spans of box calls a second; the span of the run counts the others.
    """

    def __init__(self, provider: Any = None, *, calls: int = CALLS) -> None:
        if isinstance(calls, bool) or not isinstance(calls, int) or calls < 0:
            raise PipelineError(f"traces(calls={calls!r}): it must be a number of spans a second, 0 or more.")
        try:
            from opentelemetry import trace
        except ImportError:
            raise PipelineError(
                "traces() needs OpenTelemetry: install headgate[telemetry], and set up a tracer provider."
            ) from None
        self._trace, self._tracer = trace, trace.get_tracer("headgate", tracer_provider=provider)
        self._calls = calls
        self._span: Any = None
        self._committed: Any = None
        """What Spark's core hears when a step is over."""
        self._telling: Telling | None = None

    def begin(self, core: Any) -> None:
        """Trace what this core decides from now on."""
        if self._span is None:
            self._epoch: int | None = None
            begin = self._latest = time.time_ns()
            told = {"headgate.app": core.network.name, "headgate.queries": len(core.network.outputs)}
            self._span = self._tracer.start_span("headgate.run", start_time=begin, attributes=told)
            self._context = self._trace.set_span_in_context(self._span)
            self._telling = Telling("traces", self._spanned)
            self._second, self._left, self.skipped = -1, 0, 0
        if not isinstance(core, Core):
            from headgate.engines.spark.stimuli import StepCommitted  # here: others need not import Spark's

            self._committed = StepCommitted
        self._span.set_attribute("headgate.policy", core.driver.policy.name)
        self._span.set_attribute("headgate.workers", core.driver.workers)
        core.observers.add(self)

    def __call__(self, stimulus: Stimulus, instructions: Sequence[Instruction], now: float) -> None:
        assert self._telling is not None
        if self._epoch is None:  # the run's clock began a little before it could be observed
            self._epoch = time.time_ns() - int(now * 1e9)
        if isinstance(stimulus, CallEnded):
            if int(now) != self._second:
                self._second, self._left = int(now), self._calls
            if not self._left:
                self.skipped += 1
                return
            self._left -= 1
            work = stimulus.work
            names = [member.live.box.name for member in work.members.values()]
            told = {
                "headgate.worker": work.worker,
                "headgate.tuples_in": work.tuples,
                "headgate.tuples_out": sum([member.tuples_out for member in work.members.values()]),
                "headgate.boxes": names,
                "headgate.queries": list(work.live.entry.queries),
            }
            self._telling.tell((f"call {names[0]}", work.start, now, told, work.error))
        elif self._committed is not None and isinstance(stimulus, self._committed):
            step, phases = stimulus.step, dict[str, float]()
            for result in stimulus.results:
                for phase, seconds in result.seconds.items():
                    phases[phase] = max(phases.get(phase, 0.0), seconds)
            told = {"headgate.step": step.number, "headgate.worker": step.worker}
            told |= {f"headgate.phase.{phase}": seconds for phase, seconds in phases.items()}
            self._telling.tell((f"step {step.number}", step.start, now, told, None))

    def _spanned(self, thing: tuple[str, float, float, dict[str, Any], Exception | None]) -> None:
        name, start, end, told, error = thing
        span = self._tracer.start_span(
            name, context=self._context, start_time=self._at(start), attributes=told
        )
        if error is not None:
            span.set_status(self._trace.StatusCode.ERROR, str(error))
        self._latest = max(self._latest, self._at(end))
        span.end(self._at(end))

    def _at(self, seconds: float) -> int:
        return (self._epoch or 0) + int(seconds * 1e9)

    def end(self, report: Report | None) -> None:
        """The run is over; without a report it failed."""
        if self._span is None or self._telling is None:
            return
        self._telling.end(report)
        self._span.set_attribute("headgate.calls_without_span", self.skipped)
        errors = [] if report is None else [q for q in report.queries.values() if q.error is not None]
        for query in errors:
            self._span.add_event("query failed", {"headgate.query": query.name, "error": str(query.error)})
        if report is None or errors:
            self._span.set_status(self._trace.StatusCode.ERROR)
        self._span.end(max(self._latest, time.time_ns()))  # virtual time may be ahead


def traces(provider: Any = None, *, calls: int = CALLS) -> Traces:
    """OpenTelemetry spans of a run: ``app.run(telemetry=[hg.traces()])``.

    They go to ``provider``, by default to the one that the process has set.  Needs ``headgate[telemetry]``.
    On threads ``calls`` bounds the spans of box calls in a second.
    """
    return Traces(provider, calls=calls)
