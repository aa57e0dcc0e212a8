"""A network and a machine as plain data, as a recording keeps them, and made again with stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.graph.network import Arrow, Box, Network, Output, Port, Source, is_vacant
from headgate.graph.operator import Operator
from headgate.graph.qos import QoS


def described(network: Network) -> dict[str, Any]:
    """A network; sources and boxes are known by their numbers."""
    sources = {source: place for place, source in enumerate(network.sources)}

    def port(arrows: Port) -> list[Any]:
        found = []
        for arrow in arrows:
            of_source = isinstance(arrow.node, Source)
            place = sources[arrow.node] if isinstance(arrow.node, Source) else network.index[arrow.node]
            found.append(["source" if of_source else "box", place, arrow.output, arrow.in_order])
        return found

    return {
        "sources": [
            {"name": s.name, "live": bool(getattr(s.origin, "live", False)), "vacant": is_vacant(s)}
            for s in network.sources
        ],
        "boxes": [_box(box) | {"ports": [port(p) for p in box.ports]} for box in network.boxes],
        "queries": [
            {
                "name": o.name,
                "port": port(o.port),
                "qos": None if o.qos is None else list(o.qos.points),
                "class": o.query_class,
                "importance": o.importance is not None,
            }
            for o in network.outputs
        ],
    }


def _box(box: Box) -> dict[str, Any]:
    operator = box.operator
    return {
        "name": box.name,
        "label": operator.label,
        "kind": operator.kind.value,
        "outputs": len(operator.outputs),
        "cost": operator.cost,
        "selectivity": operator.selectivity,
        "closes": type(operator).finish is not Operator.finish,
        "slow": bool(operator.slow),
        "vacant": is_vacant(box),
    }


def rebuilt(
    name: str,
    data: Mapping[str, Any],
    source: Callable[[int, Mapping[str, Any]], Source],
    operator: Callable[[int, Mapping[str, Any]], Operator],
    sink: Callable[[str], Any],
) -> Network:
    """A network of the same shape, whose nodes the three functions make."""
    sources = [source(place, one) for place, one in enumerate(data["sources"])]
    boxes = [Box(one["name"], operator(place, one)) for place, one in enumerate(data["boxes"])]

    def port(arrows: Sequence[Any]) -> Port:
        return tuple(
            Arrow(sources[place] if kind == "source" else boxes[place], output, in_order)
            for kind, place, output, in_order in arrows
        )

    for box, one in zip(boxes, data["boxes"], strict=True):
        box.ports = tuple(port(arrows) for arrows in one["ports"])
    outputs = [
        Output(
            one["name"],
            port(one["port"]),
            sink(one["name"]),
            None if one["qos"] is None else QoS([tuple(point) for point in one["qos"]]),
            query_class=one["class"],
        )
        for one in data["queries"]
    ]
    used = [source for place, source in enumerate(sources) if not data["sources"][place]["vacant"]]
    kept = [box for box, one in zip(boxes, data["boxes"], strict=True) if not one["vacant"]]
    return Network(used, kept, outputs, name)
