"""Queries that join a run on threads or in simulation: what they share with it, from the next tuple on.

A box that is shared runs once, with one state and one cursor, and here rows are gone once they were read.  So
a query that joins begins with the next tuple.  A running box without state makes the same of that tuple
whatever came before: the query shares it and is given no results of earlier tuples.  A box with state
remembers earlier ones, so the query gets a copy of it and of all that follows it.  Queries that join together
share their copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from headgate.connectors.sink import check_shared
from headgate.errors import PipelineError, nearest
from headgate.graph.network import (
    Arrow,
    Box,
    Network,
    Output,
    Port,
    Request,
    Source,
    boxes_before,
    sources_before,
)

Sources = dict[Source, Source]
"""By source of a query that joins, the one that the run reads for it."""
Standing = Callable[[Box], Box | None]
"""By box of the application, the running one that a query which joins may share."""


def with_queries(network: Network, outputs: Sequence[Output], standing: Standing) -> Network:
    """A running network with additional queries, which share boxes that stand where they begin."""
    check_new(network, outputs)
    made: dict[Box, Box] = {}
    request = outputs[0].request
    if request is not None:
        own = own_sources(network, request)
        joining = [_joining(output, made, network, own) for output in outputs]
        return network.joined(list(made.values()), joining, list(own.values()))
    for output in outputs:
        if output.start not in ("earliest", "now"):
            raise PipelineError(
                f"query '{output.name}' asks to start with tuple {output.start}, which is gone; without a "
                "checkpoint a query that joins starts with the next tuple: say start='now'."
            )
    joining = [_joining(output, made, network, _shared(network, output), standing) for output in outputs]
    return network.joined([box for box in made.values() if box not in network.index], joining)


def other_queries(network: Network, outputs: Sequence[Output], remove: Sequence[str]) -> Network:
    """A network after queries were added and removed; boxes that are still needed stay as they are."""
    check_new(network, outputs)
    check_removal(remove, [output.name for output in network.outputs])
    stay = [output for output in network.outputs if output.name not in remove]
    made = {box: box for box in network.boxes}
    stay += [_joining(output, made, network, _shared(network, output)) for output in outputs]
    needed = {box for output in stay for box in boxes_before(output.port)}
    boxes = [box for box in dict.fromkeys(made.values()) if box in needed]
    letters = network.dead_letter
    if letters is not None:
        letters = replace(letters, port=tuple(map(Arrow, boxes)))
    return Network(network.sources, boxes, stay, network.name, letters)


def joining(network: Network, ended: Callable[[dict[str, Any]], None] = lambda reports: None) -> list[Output]:
    """The outputs of an application that joins a run as a request; ``ended`` is called when it is over."""
    for source in network.sources:
        if source.origin.live:
            raise PipelineError(
                f"request '{network.name}' reads source '{source.name}', which has no end; a request ends "
                "with its sources. Let a query join with running.add(…) instead."
            )
    if network.dead_letter is not None:
        raise PipelineError(
            f"request '{network.name}' has a dead-letter output; its bad rows go where those of the running "
            "application go. Leave it out."
        )
    for output in network.outputs:
        if output.keep is not None:
            raise PipelineError(
                f"query '{output.name}' of request '{network.name}' asks for its history to be kept (keep=), "
                "but a request leaves nothing behind; leave keep= out."
            )
    request = Request(network.name, tuple(network.sources), ended)
    return [replace(output, request=request) for output in network.outputs]


def own_sources(network: Network, request: Request) -> Sources:
    """The sources of a request, each under a name that no source of the run has."""
    known = {source.name for source in network.sources}
    made: Sources = {}
    for source in request.sources:
        name = source.name
        while name in known:
            name = f"{name}@{request.name}"
        known.add(name)
        made[source] = replace(source, name=name, request=request)
    return made


def _shared(network: Network, output: Output) -> Sources:
    """The sources that a query reads, as the run knows them: by their names."""
    known = {source.name: source for source in network.sources}
    return {source: known[source.name] for source in sources_before(output.port)}


def _joining(
    output: Output,
    made: dict[Box, Box],
    network: Network,
    sources: Sources,
    standing: Standing = lambda box: None,
) -> Output:
    """A query that joins: over the boxes in ``made`` and those that stand, and over new ones."""
    known = {box.name for box in (*network.boxes, *made.values())}
    for box in _in_order(output.port):
        if box in made:
            continue
        ports = tuple(_moved(port, made, sources) for port in box.ports)
        there = standing(box)
        if there is not None and there.ports == ports:
            made[box] = there
            continue
        name = box.name
        while name in known:
            name = f"{name}@{output.name}"
        known.add(name)
        made[box] = Box(name, box.operator, ports, original=box)
    return replace(output, port=_moved(output.port, made, sources))


def check_removal(remove: Sequence[str], alive: Collection[str]) -> None:
    """Refuse to remove a query that does not run, or the last one that does."""
    for name in remove:
        if name not in alive:
            raise PipelineError(f"There is no query '{name}' that runs.{nearest(name, alive)}")
    if remove and not set(alive).difference(remove):
        raise PipelineError(f"Query '{remove[0]}' is the only one that runs; stop the run instead.")


def check_new(network: Network, outputs: Sequence[Output]) -> None:
    """Refuse a query that is not new, or that reads a source which no query of the run reads.

    A request brings its sources along.
    """
    names = [output.name for output in network.outputs]
    sources = [source.name for source in network.sources]
    writing = [(o.name, o.sink) for o in (*network.outputs, *filter(None, [network.dead_letter]))]
    for output in outputs:
        check_shared(output.name, output.sink, writing)
        writing.append((output.name, output.sink))
        if output.name in names:
            raise PipelineError(
                f"This run has or had a query '{output.name}'; give the new one another name."
            )
        if output.request is not None:
            continue
        needed = {a.node for box in boxes_before(output.port) for port in box.ports for a in port}
        for node in sorted(
            {n.name for n in (*needed, *(a.node for a in output.port)) if isinstance(n, Source)}
        ):
            if node not in sources:
                raise PipelineError(
                    f"query '{output.name}' reads source '{node}', which no query of this run "
                    f"does.{nearest(node, sources)} Start a run with a query over it."
                )


def _in_order(port: Port) -> list[Box]:
    """The boxes before a port, those that feed others first."""
    return Network.in_order(boxes_before(port)[::-1])


def _moved(port: Port, made: dict[Box, Box], sources: Sources) -> Port:
    """A port whose arrows come from the boxes that were made, and from the sources that run."""
    return tuple(
        replace(arrow, node=made[arrow.node] if isinstance(arrow.node, Box) else sources[arrow.node])
        for arrow in port
    )
