"""What every engine is to the layers above: something that runs a network under a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headgate.control.line import Line
from headgate.errors import PipelineError, nearest
from headgate.graph.network import Network
from headgate.machine.host import host
from headgate.runtime.report import Report
from headgate.scheduling.interface import Policy
from headgate.scheduling.tuning.packet_size import PacketTuner

Progress = Callable[[Report], None]
Until = str | float | None


class Engine:
    """Runs networks."""

    name = "engine"

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
    """Refuse queries with ``keep=``: only the Spark engine keeps results."""
    kept = [output.name for output in network.outputs if output.keep is not None]
    if kept:
        raise PipelineError(
            f"query '{kept[0]}' asks for its history to be kept (keep=), which the {engine} engine does not; "
            "run with engine='spark', or leave keep= out."
        )


def half_of_l2() -> int:
    """Bytes of half of a core's second-level cache, where packets work best (Bobox, section 5.3)."""
    machine = host()
    second = machine.cache(machine.cores[0], 2)
    return second.size // 2 if second is not None else 256 * 1024


def default_packet_rows() -> int:
    """Rows per packet: half of L2 in values of 8 bytes, since a kernel touches a column or two at a time."""
    return max(8192, min(131_072, half_of_l2() // 8))


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


def packets(policy: Policy, packet_rows: int | str | None) -> tuple[Policy, int]:
    """The policy, which also tunes the size of packets if that was asked for; and the size to begin with."""
    if isinstance(packet_rows, int):
        return policy, packet_rows
    rows = default_packet_rows()
    return (PacketTuner(policy, rows) if packet_rows == AUTO else policy), rows


def refitted(policy: Policy, packet_rows: int | str | None, rows: int) -> Policy:
    """A policy that takes over in a run with packets of so many rows."""
    return PacketTuner(policy, default_packet_rows(), rows) if packet_rows == AUTO else policy


def check_scheme(engine: str, what: str, given: str, known: Iterable[str]) -> None:
    """Refuse an unknown scheme when the engine is made."""
    if given not in known:
        raise PipelineError(
            f"{engine}({what}={given!r}): there is no such scheme.{nearest(given, known)} "
            f"There are: {', '.join(known)}."
        )
