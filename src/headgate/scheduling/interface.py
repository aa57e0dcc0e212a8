"""The scheduling interface: what an engine tells a policy, and what a policy may decide.

An engine sends events (``scheduling/events.py``).  ``handle`` answers with decisions, which the engine
carries out at once.  A policy

- may keep any state of its own and read the catalog, which holds all events so far;
- may run a plan on the worker that is idle, leave it parked, wake parked workers, set timers, and have
  tuples dropped;
- may reschedule: have its own work done in phases by all workers, at a barrier that the engine holds;
- may not block, read a clock, start threads, look at tuples, or draw randomness that its seed does not fix.

The engine keeps the promises that no policy can break: a box is never given to more workers than its
lanes, output is in order, queues are bounded, and a call that cannot run any more when its turn comes is
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event
from headgate.scheduling.trains import Train


@dataclass(slots=True)
class Call:
    """One box call: which box, and how many tuples (the rule is evaluated when the call starts)."""

    box: int
    train: Train


Plan = tuple[Call, ...]

ANYONE = -1
"""Any worker, in ``Wake``."""


@dataclass(slots=True)
class Run:
    """Run this plan on this worker."""

    worker: int
    plan: Plan


@dataclass(slots=True)
class Wake:
    """Wake these parked workers; each will ask for work.

    A policy with ``one_semaphore`` wakes ``ANYONE``: one that sleeps, or the next that finds nothing.
    """

    workers: tuple[int, ...]


@dataclass(slots=True)
class SetTimer:
    """Send a ``Timer`` of that name at that time."""

    at: float
    name: str


@dataclass(slots=True)
class Shed:
    """From now on drop this share of the tuples that come to a box; 0 ends it.

    ``reason``: how they are chosen, "random" or "semantic", the least important first.
    """

    box: int
    share: float
    reason: str = "random"


@dataclass(slots=True)
class SetPacketRows:
    """Cut packets of so many rows from now on; engines that cut no packets ignore it."""

    rows: int


@dataclass(slots=True)
class Phase:
    """Part of a scheduling task: slices that workers share, or a single one.

    A slice writes nothing that another slice of its phase reads or writes, blocks on nothing, and returns the
    number of boxes it dealt with, for which simulation charges.  Events may be handled at the same time.
    """

    name: str
    slices: tuple[Callable[[], int], ...] = field(compare=False)


@dataclass(slots=True)
class Reschedule:
    """Carry these phases out, one after the other, by the workers that are not inside a call; wake sleepers.

    Each phase begins when the one before is over.  No worker begins a call until ``Rescheduled`` was handled.
    Workers inside calls are not waited for: the others do their slices.
    """

    phases: tuple[Phase, ...]


Decision = Run | Wake | SetTimer | Shed | SetPacketRows | Reschedule


class Policy:
    """Events in, decisions out."""

    name = "policy"
    needs: frozenset[str] = frozenset()
    """Measurements that cost something and that this policy uses: of queued tuples ``"latency"``, or only
    that of the ``"head"``, and ``"bytes"``; of sources ``"arrivals"``.  They may grow when it has started or
    rescheduled."""
    pins = False
    """Whether workers stay on the cores of their groups (``catalog.topology``)."""
    one_lane = False
    """Whether it never puts a second worker into a box, so that keyed boxes need not be split for more."""
    one_semaphore = False
    """Whether all workers sleep on one semaphore, raised for every task and lowered for every plan."""
    assigns = False
    """Whether it gives boxes to workers itself, so that none of its workers may be put to sleep."""
    grows = False
    """Whether it takes in boxes that join and leave (``Joined``, ``Left``); otherwise it begins anew."""
    problems: Sequence[str] = ()
    """What went wrong in the policy itself, for the report; each problem once."""
    settings: frozenset[str] = frozenset()
    """What can be set while it runs: ``"period"``, in seconds, and ``"batch"``, a train."""
    train: Train | None = None
    """The train of its calls, if it has the same rule for all and lets others set it (``tuned``)."""

    def workers(self, boxes: int, requested: int) -> int:
        """How many workers it wants; an engine with fewer cores lets the operating system share them."""
        return requested

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        """Called before any event, and again when workers or boxes have become more or fewer.

        It may take over from another policy: ``catalog.since`` says when, and the catalog has the queues.  It
        will hear of the end of calls that are under way, also from workers that have been removed.  No
        worker is parked; all will ask.
        """
        raise NotImplementedError

    def set(self, name: str, value: float | Train, now: float) -> Sequence[Decision]:
        """Change one of its ``settings``; before ``start`` too."""
        raise NotImplementedError

    def handle(self, event: Event) -> Sequence[Decision]:
        """Called for every event, after the catalog has taken it in."""
        raise NotImplementedError
