"""``Simulated``: real packets through real operators, in virtual time, deterministic by seed.

The cost model: a box call takes its overhead plus its tuples times their cost; the k-th tuple of a call
leaves after k times the cost.  Costs are stated (the papers' synthetic boxes), given, or zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.control.line import Line
from headgate.engines.base import (
    Engine,
    Progress,
    Until,
    check_packet_rows,
    check_ring,
    check_scheme,
)
from headgate.engines.simulated.costs import Costs
from headgate.engines.simulated.run import SimulatedRun
from headgate.engines.simulated.settings import Settings
from headgate.engines.spool import LIMIT, check_spool
from headgate.errors import PipelineError
from headgate.graph.network import Network
from headgate.machine import host as machines
from headgate.machine import memory_model
from headgate.machine.calibration import Calibration
from headgate.machine.memory_model import MemoryModel
from headgate.machine.topology import Topology
from headgate.machine.topology_format import spell
from headgate.runtime.limits import check_workers
from headgate.runtime.ordered import reordering
from headgate.runtime.ordered.partitioning import IN_TURNS
from headgate.runtime.ordered.partitioning import SCHEMES as PARTITIONING
from headgate.runtime.report import Report
from headgate.scheduling.interface import Policy


class Simulated(Engine):
    """Runs a network in virtual time.

    ``costs`` gives seconds per tuple by box name where the box states none, for instance as measured by
    another run's ``report.boxes``; or it is a file that ``headgate calibrate`` wrote, which knows operators
    by what they do and adds the measured overhead of a call to ``call_overhead``.  ``quantum`` and
    ``switch_cost`` model the operating system that shares cores between threads, which matters when a policy
    wants more workers than there are.

    ``send_cost`` is the seconds that passing on a result takes, one after the other for each box.  A worker
    whose box is being sent by another leaves its results to that one with ``reorder="nonblocking"``, and
    waits for its turn with ``"lock"``.  ``ring``: see ``Threads``.

    ``decision_cost`` is the seconds that a worker waits for a plan, the scheduler's overhead: the same for
    every plan, or what a function of the policy says, which it calls once a plan is made.
    ``cores``: processors that the workers share, by default as many as there are workers.
    ``topology`` is the machine, which has a worker for every core: "host", the name of one of the papers'
    (``headgate topology`` draws them), a file, or a description; None for an unknown one.
    ``memory`` is what its caches and memory cost (``hg.MemoryModel``, a file as ``headgate calibrate`` writes
    one, or the name of one of the papers' machines; True: that of the topology): calls then also read their
    packets from where they are and write their results, and ``report.traffic`` tells of it.  None: memory
    costs nothing.
    ``reschedule_cost`` is the seconds per box and phase of a scheduling task, which workers share where the
    policy lets them.  ``spool``: see ``Threads``; here it is memory, and with a model of memory there
    is none.
    """

    name = "simulated"

    def __init__(
        self,
        *,
        topology: str | Path | Topology | None = None,
        memory: str | Path | MemoryModel | bool | None = None,
        workers: int | None = None,
        cores: int | None = None,
        call_overhead: float = 0.0,
        seed: int = 0,
        packet_rows: int | str | None = None,
        costs: Mapping[str, float] | str | Path | Calibration | Costs | None = None,
        reorder: str = "nonblocking",
        ring: int | None = None,
        partitioning: str = "hybrid",
        buckets: int = 100,
        split: bool | None = None,
        quantum: float = 0.004,
        switch_cost: float = 5e-6,
        send_cost: float = 0.0,
        decision_cost: float | Callable[[Policy], float] = 0.0,
        reschedule_cost: float = 0.0,
        spool: int = LIMIT,
    ) -> None:
        if workers is not None:
            check_workers(workers, "Simulated")
        if cores is not None:
            check_workers(cores, "Simulated")
        seconds = {
            "call_overhead": call_overhead,
            "switch_cost": switch_cost,
            "send_cost": send_cost,
            "decision_cost": 0.0 if callable(decision_cost) else decision_cost,
            "reschedule_cost": reschedule_cost,
        }
        for what, given in seconds.items():
            if given < 0:
                raise PipelineError(f"Simulated({what}={given:g}): it cannot be negative.")
        if quantum <= 0:
            raise PipelineError(f"Simulated(quantum={quantum:g}): it must be positive.")
        check_packet_rows("Simulated", packet_rows)
        check_scheme("Simulated", "reorder", reorder, reordering.SCHEMES)
        check_ring("Simulated", ring)
        check_spool("Simulated", spool)
        check_scheme("Simulated", "partitioning", partitioning, PARTITIONING)
        self.workers = workers
        machine = None if topology is None else machines.get(topology)
        known = costs if isinstance(costs, Costs) else Costs(costs)
        self.settings = Settings(
            topology=machine,
            memory=memory_model.get(memory, machine) if memory else None,
            workers=workers,
            cores=cores,
            costs=known,
            call_overhead=call_overhead + known.call_overhead,
            seed=seed,
            spool=spool,
            packet_rows=packet_rows,
            reorder=reorder,
            ring=ring,
            partitioning=IN_TURNS if partitioning == "shared" else partitioning,
            buckets=buckets,
            split=split,
            quantum=quantum,
            switch_cost=switch_cost,
            send_cost=send_cost,
            decision_cost=decision_cost,
            reschedule_cost=reschedule_cost,
        )

    @property
    def topology(self) -> Topology | None:
        """The machine."""
        return self.settings.topology

    def described(self) -> dict[str, Any]:
        given = vars(self.settings)
        plain = (
            "call_overhead",
            "seed",
            "packet_rows",
            "reorder",
            "ring",
            "partitioning",
            "buckets",
            "split",
        )
        kept = {name: given[name] for name in (*plain, "quantum", "switch_cost", "send_cost")}
        kept["reschedule_cost"], kept["costs"] = self.settings.reschedule_cost, self.costs.by_box
        kept["decision_cost"] = 0.0 if callable(self.settings.decision_cost) else self.settings.decision_cost
        kept["topology"] = None if self.topology is None else spell(self.topology)
        # What follows from what is in a cache, or from the policy, cannot be told from a recording.
        kept["plain"] = not (
            self.memory or self.costs.calibration is not None or callable(self.settings.decision_cost)
        )
        return kept

    @property
    def memory(self) -> MemoryModel | None:
        return self.settings.memory

    @property
    def costs(self) -> Costs:
        return self.settings.costs

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
        return SimulatedRun(self.settings, network, policy, workers, until, progress, seed).run(line)
