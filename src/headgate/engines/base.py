"""What every engine is to the layers above: something that runs a network under a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from headgate.control.line import Line
from headgate.errors import PipelineError, nearest
from headgate.graph.needs import needs
from headgate.graph.network import Network
from headgate.graph.schema import row_bytes
from headgate.machine.host import host
from headgate.machine.topology import Topology
from headgate.runtime.report import Report
from headgate.scheduling.interface import Policy
from headgate.scheduling.tuning.packet_size import PacketTuner

LEAST_ROWS, MOST_ROWS = 16_384, 131_072
"""Rows of a packet, where their number is not given."""
UNKNOWN_L2 = 512 * 1024
"""Bytes of L2 where the system does not tell."""
Progress = Callable[[Report], None]
Until = str | float | None


class Engine:
    """Runs networks."""

    name = "engine"

    def described(self) -> dict[str, Any]:
        """Settings that a recording keeps, so that a replay can have them too."""
        return {}

    def run(
        self,
        network: Network,
        policy: Policy,
        *,
        workers: int | None = None,
        until: Until = "drained",
        progress: Progress | None = None,
        seed: int = 0,
        line: Line | None = None,
    ) -> Report:
        """Run it to its end; through ``line`` other threads reach the run."""
        raise NotImplementedError


def deadline(until: Until) -> float | None:
    """Seconds after which a run stops; None for one that ends by itself or by hand."""
    if until is None or until == "drained":
        return None
    if isinstance(until, (int, float)) and not isinstance(until, bool) and until > 0:
        return float(until)
    raise PipelineError(f"until={until!r}: use 'drained', a number of seconds, or None to run until stopped.")


def refuse_history(network: Network, engine: str) -> None:
    """Refuse queries with ``keep=``: a simulation keeps no results."""
    kept = [output.name for output in network.outputs if output.keep is not None]
    if kept:
        raise PipelineError(
            f"query '{kept[0]}' asks for its history to be kept (keep=), which the {engine} engine does not; "
            "run with engine='spark' or 'threads', or leave keep= out."
        )


def half_of_l2(machine: Topology | None = None) -> int:
    """Bytes of half of a core's share of the second-level cache, where packets work best (Bobox, 5.3)."""
    machine = machine or host()
    first, second = (machine.cache(machine.cores[0], level) for level in (1, 2))
    if second is None:
        return UNKNOWN_L2 // 2
    threads = 1 if first is None else len(first.cores)  # those of one core share all that it has
    return second.size // 2 // max(1, len(second.cores) // threads)


def default_packet_rows(row: float = 8.0, machine: Topology | None = None) -> int:
    """Rows per packet: half of L2 in rows of so many bytes.

    On the host at least ``LEAST_ROWS``: for fewer, Python takes as long as the kernels.  A described machine
    has no Python.
    """
    least = LEAST_ROWS if machine is None else 1
    return max(least, min(MOST_ROWS, int(half_of_l2(machine) / row)))


def widest_row(network: Network) -> float:
    """Bytes of the widest row that the network reads; columns that nothing needs take no room."""
    read = [pa.schema([own.schema.field(name) for name in own.names]) for own in needs(network)]
    return max([row_bytes(schema) for schema in read], default=8.0)


AUTO = "auto"


def check_packet_rows(engine: str, packet_rows: int | str | None) -> None:
    if packet_rows is None or packet_rows == AUTO or (isinstance(packet_rows, int) and packet_rows >= 1):
        return
    raise PipelineError(
        f"{engine}(packet_rows={packet_rows!r}): it must be at least 1, or {AUTO!r} to find the best size "
        "while running."
    )


def check_ring(engine: str, ring: int | None) -> None:
    if ring is None or (isinstance(ring, int) and not isinstance(ring, bool) and ring >= 1):
        return
    raise PipelineError(f"{engine}(ring={ring!r}): it must be a number of calls, at least 1.")


def packets(
    policy: Policy, packet_rows: int | str | None, network: Network, machine: Topology | None = None
) -> tuple[Policy, int]:
    """The policy, which also tunes the size of packets if that was asked for; and the size to begin with.

    ``machine``: one that is described; None: the host.
    """
    if isinstance(packet_rows, int):
        return policy, packet_rows
    rows = default_packet_rows(widest_row(network), machine)
    return (PacketTuner(policy, rows) if packet_rows == AUTO else policy), rows


def refitted(policy: Policy, packet_rows: int | str | None, usual: int, rows: int) -> Policy:
    """A policy that takes over in a run with packets of so many rows, where they usually have ``usual``."""
    return PacketTuner(policy, usual, rows) if packet_rows == AUTO else policy


def check_scheme(engine: str, what: str, given: str, known: Iterable[str]) -> None:
    """Refuse an unknown scheme when the engine is made."""
    if given not in known:
        raise PipelineError(
            f"{engine}({what}={given!r}): there is no such scheme.{nearest(given, known)} "
            f"There are: {', '.join(known)}."
        )
