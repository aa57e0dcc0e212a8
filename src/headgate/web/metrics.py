"""The metrics of a run in Prometheus's text format.  Names and labels are stable: ``docs/operations.md``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from headgate.control.watching import BUCKETS, Sample, Watch

Row = tuple[str, Mapping[str, str], float]
_PART = re.compile("_(bucket|sum|count)$")
"""What a histogram adds to its name."""


def metrics(watch: Watch) -> str:
    """All metrics, as of the last sample."""
    sample = watch.samples[-1] if watch.samples else None
    if sample is None:
        return ""
    found: dict[str, list[Row]] = {}
    for row in _rows(watch, sample):
        found.setdefault(_PART.sub("", row[0]), []).append(row)
    lines: list[str] = []
    for name, kind, says in _KNOWN:
        if name in found:
            lines += [f"# HELP {name} {says}", f"# TYPE {name} {kind}"]
            lines += [_line(row, sample.seen.network.name) for row in found[name]]
    return "\n".join(lines) + "\n"


_KNOWN = (
    ("headgate_run_seconds", "gauge", "Seconds since the run began."),
    ("headgate_workers", "gauge", "Workers of the policy in force."),
    ("headgate_policy_info", "gauge", "The policy in force, as a label."),
    ("headgate_source_rows_total", "counter", "Rows admitted from a source."),
    ("headgate_source_lag_seconds_total", "counter", "Seconds from arrival to admission, of all rows."),
    ("headgate_query_up", "gauge", "1 while a query runs; 0 if it failed or waits for a source."),
    ("headgate_query_rows_in_total", "counter", "Source rows for a query."),
    ("headgate_query_rows_out_total", "counter", "Results handed over."),
    ("headgate_query_rows_late_total", "counter", "Rows that came after their window had closed."),
    ("headgate_query_rows_shed_total", "counter", "Rows that load shedding dropped."),
    ("headgate_query_goal_missed_total", "counter", "Results handed over past the query's goal."),
    ("headgate_query_backlog_rows", "gauge", "Rows that wait for a query."),
    ("headgate_query_utility", "gauge", "Mean utility of the last minute's results."),
    ("headgate_query_latency_seconds", "histogram", "From arrival to hand-over."),
    ("headgate_box_calls_total", "counter", "Calls of a box."),
    ("headgate_box_rows_in_total", "counter", "Rows that a box took."),
    ("headgate_box_rows_out_total", "counter", "Rows that a box made."),
    ("headgate_box_busy_seconds_total", "counter", "Seconds inside a box."),
    ("headgate_box_queue_rows", "gauge", "Rows that wait before a box."),
    ("headgate_steps_total", "counter", "Spark steps committed."),
    ("headgate_step_seconds_total", "counter", "Where the steps' time went, by phase."),
    ("headgate_watch_cpu_seconds_total", "counter", "Processor time of watching itself."),
)


def _rows(watch: Watch, sample: Sample) -> Iterator[Row]:
    seen = sample.seen
    yield "headgate_run_seconds", {}, seen.now
    yield "headgate_workers", {}, seen.workers
    yield "headgate_policy_info", {"policy": seen.policy}, 1
    for source, own in zip(seen.network.sources, seen.sources, strict=True):
        label = {"source": source.name}
        yield "headgate_source_rows_total", label, own.rows
        yield "headgate_source_lag_seconds_total", label, own.lag
    for name, each in sample.queries.items():
        label, query = {"query": name}, each.seen
        yield "headgate_query_up", label, query.state in ("running", "finished")
        yield "headgate_query_rows_in_total", label, query.tuples_in
        yield "headgate_query_rows_out_total", label, query.tuples_out
        yield "headgate_query_rows_late_total", label, query.late
        yield "headgate_query_rows_shed_total", label, query.shed
        yield "headgate_query_backlog_rows", label, query.backlog
        totals = watch.totals[name]
        yield "headgate_query_goal_missed_total", label, totals.late
        utility = watch.last(name)["utility"]
        if utility is not None:
            yield "headgate_query_utility", label, utility
        below = 0
        for bound, rows in zip((*BUCKETS, None), totals.buckets, strict=True):
            below += rows
            le = "+Inf" if bound is None else f"{bound:g}"
            yield "headgate_query_latency_seconds_bucket", {**label, "le": le}, below
        yield "headgate_query_latency_seconds_sum", label, totals.seconds
        yield "headgate_query_latency_seconds_count", label, below
    for box, state in zip(seen.network.boxes, seen.boxes, strict=True):
        label = {"box": box.name}
        yield "headgate_box_calls_total", label, state.calls
        yield "headgate_box_rows_in_total", label, state.tuples_in
        yield "headgate_box_rows_out_total", label, state.tuples_out
        yield "headgate_box_busy_seconds_total", label, state.busy
        yield "headgate_box_queue_rows", label, state.queued
    yield "headgate_steps_total", {}, seen.steps
    for phase, spent in seen.step_seconds.items():
        yield "headgate_step_seconds_total", {"phase": phase}, spent
    yield "headgate_watch_cpu_seconds_total", {}, watch.took


def _line(row: Row, app: str) -> str:
    name, labels, value = row
    text = ",".join(f'{label}="{_escaped(given)}"' for label, given in [("app", app), *labels.items()])
    return f"{name}{{{text}}} {float(value):.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def unready(watch: Watch) -> Iterable[str]:
    """Why a run is not ready, or not well; nothing if it is."""
    if not watch.samples:
        return ["The run has not begun."]
    queries = watch.samples[-1].queries.items()
    return [f"Query '{name}' is {own.seen.state}." for name, own in queries if own.seen.state in _NOT_READY]


_NOT_READY = ("failed", "waiting")
