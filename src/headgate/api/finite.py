"""Parts of finite plans that several front ends need, decomposed as in Bobox: a box is one thread's work.

A sort becomes runs and a net of merges, a hash join several joins of some keys each.  Spark gives the boxes
of one level to different tasks.
"""

from __future__ import annotations

from headgate.api.streams import Stream
from headgate.connectors.batches import BatchSource
from headgate.connectors.files import FileSource
from headgate.graph.network import Arrow, sources_before
from headgate.graph.operator import Operator
from headgate.graph.operators.hash_join import HashJoin
from headgate.graph.operators.sort import Deal, DealByKey, MergeRuns, SortRun

RUN = 65_536
"""Rows that are expected to be worth a run of their own when they are sorted."""
MOST_RUNS = 8


def runs_of(rows: float) -> int:
    """Into how many runs so many rows are sorted."""
    ways = 1
    while ways < MOST_RUNS and ways * RUN < rows:
        ways *= 2
    return ways


def expected_runs(*streams: Stream) -> int:
    """By the rows of the sources of these streams, where they are known."""
    sources = {source for stream in streams for source in sources_before(stream._port)}
    known = [source.origin for source in sources if isinstance(source.origin, BatchSource | FileSource)]
    return runs_of(sum(origin.rows for origin in known))


def sort_net(stream: Stream, by: str, ways: int, first: int | None = None) -> Stream:
    """Runs that are sorted at once, a power of two of them, and a net that merges two at a time.

    ``by`` is what follows ORDER BY; ``first``: only so many rows are wanted.
    """
    schema = stream.schema
    if ways == 1:
        return stream._box("sort", SortRun(schema, by, first), None)
    runs = [
        part._box("sort", SortRun(schema, by, first), None) for part in _dealt(stream, Deal(schema, ways))
    ]
    while len(runs) > 1:
        pairs = zip(runs[::2], runs[1::2], strict=True)
        runs = [
            one._box("merge", MergeRuns(schema, by, first), None, one._port, other._port)
            for one, other in pairs
        ]
    return runs[0]


def hash_joins(left: Stream, right: Stream, join: HashJoin, ways: int, verb: str = "join") -> Stream:
    """A hash join as so many joins, each of the keys of one hash.

    With several ways the left rows leave by way, and in their order only within it.
    """
    if ways == 1 or not join.on:
        return left._box(verb, join, None, left._port, right._port)
    keys = zip(*join.on, strict=True)
    sides = [
        _dealt(stream, DealByKey(stream.schema, names, ways))
        for stream, names in zip((left, right), keys, strict=True)
    ]
    joined: list[Stream] = [
        one._box(verb, join, None, one._port, two._port) for one, two in zip(*sides, strict=True)
    ]
    whole: Stream = joined[0].union(*joined[1:])
    return whole


def _dealt(stream: Stream, deal: Operator) -> list[Stream]:
    node = stream._box("deal", deal, None)._port[0].node
    return [Stream(stream._pipeline, (Arrow(node, way),)) for way in range(len(deal.outputs))]
