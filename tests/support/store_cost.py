"""What a commit costs on a store that takes its time: ``python tests/support/store_cost.py QUERIES SECONDS``.

Keyed queries over one source, in one step each time; all requests go through a proxy that holds each for so
many seconds.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import headgate as hg
from checkpoints import write_orders
from headgate.scheduling.interface import Call
from killed_driver import QUICK, Trains
from object_stores import BUCKET, Way, options, s3_server


class Whole(Trains):
    """Every step goes through all boxes."""

    def choose(self, worker: int, now: float) -> Any:
        return tuple(Call(box, self._train) for box in range(len(self.catalog.boxes)))


def keyed(orders: Path, out: Path | None, queries: int) -> hg.App:
    """Running sums per user, one query for each remainder; into files, or into lists that see them first."""
    made = hg.App("shop")
    source = made.source("orders", hg.from_files(orders))
    for number in range(queries):
        some = source.filter(f"amount % {queries} = {number}").key_by("user")
        sums = some.running("sum(amount) AS total").filter("total >= 0")
        sink = hg.to_list([]) if out is None else hg.to_parquet(out / f"sums-{number}")
        sums.to(f"sums-{number}", sink)
    return made


def main(queries: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name, s3_server() as server, Way(server, seconds) as way:
        orders = Path(name, "orders")
        write_orders(orders, 1, 6000, seed=1)
        for lists in (False, True):
            way.seen.clear()
            place = f"s3://{BUCKET}/cost-{lists}"
            engine = hg.Spark(
                checkpoint=place, storage_options=options(way.address), workers=1, options=QUICK
            )
            out = None if lists else Path(name, "out")
            report = keyed(orders, out, queries).run(engine, Whole(300, 1))
            steps, sink = report.steps, "lists" if lists else "files"
            commit = report.step_seconds["commit"] / steps
            where = Counter(f"{method} {key.split('/')[1]}" for method, key in way.seen if "/" in key)
            spent = {what: round(own / steps, 3) for what, own in report.step_seconds.items()}
            print(
                f"{queries} queries, {seconds * 1000:g} ms for a request, into {sink}: {steps} steps in "
                f"{report.seconds:.1f} s, {len(way.seen) / steps:.1f} requests and {commit * 1000:.0f} ms of "
                f"commit for each\n  seconds of a step: {spent}\n  requests: {dict(where)}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
