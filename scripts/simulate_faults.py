"""Runs the fault simulation on many seeds, on all cores: `make simulate-faults SEEDS=1000000`.

    scripts/simulate_faults.py --seeds 1000000
    scripts/simulate_faults.py --replay 4711        # one run, and all that happened in it

A seed that fails is printed with its reason and the command that replays it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIECE = 25
"""Seeds that a process takes at a time."""

if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed fixes
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from fault_simulation import runs  # noqa: E402
from fault_simulation.world import Wrong  # noqa: E402


def work(first: int, seeds: int, step: int) -> None:
    """Every ``step``-th piece of the seeds; one line of JSON for each."""
    os.nice(5)
    with runs.many():
        for start in range(first, first + seeds, PIECE * step):
            failed, struck, points = [], 0, 0
            for seed in range(start, min(start + PIECE, first + seeds)):
                try:
                    done = runs.simulate(seed)
                    struck += len(done.world.struck)
                    points += done.world.points
                except Wrong as error:
                    failed.append((seed, str(error)[:300]))
            print(json.dumps([min(PIECE, first + seeds - start), struck, points, failed]), flush=True)


def replay(seed: int) -> int:
    history: list[str] = []
    try:
        runs.simulate(seed, history)
        last = "all is well"
    except Wrong as error:
        last = f"WRONG: {error}"
    print("\n".join(history))
    print(last)
    return int(last.startswith("WRONG"))


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--seeds", type=int, default=1_000_000, help="how many (default: a million)")
    given.add_argument("--first", type=int, default=0, help="the first of them")
    given.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    given.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    given.add_argument("--replay", type=int, help="run this seed alone and print what happened")
    given.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = given.parse_args()
    if options.replay is not None:
        return replay(options.replay)
    if options.work:
        work(options.first, options.seeds, options.processes)
        return 0
    begin, seeds, struck, points, failures = time.monotonic(), 0, 0, 0, 0
    workers = []
    for number in range(options.processes):
        own = [f"--first={options.first + PIECE * number}", f"--seeds={options.seeds - PIECE * number}"]
        command = [sys.executable, __file__, "--work", f"--processes={options.processes}", *own]
        workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    ready = selectors.DefaultSelector()
    for worker in workers:
        assert worker.stdout is not None
        ready.register(worker.stdout, selectors.EVENT_READ)
    seconds = 0.0
    while ready.get_map() and seconds < options.seconds:
        for key, _ in ready.select():
            line = key.fileobj.readline()  # type: ignore[union-attr]
            if not line:
                ready.unregister(key.fileobj)
                continue
            done, faults, passed, failed = json.loads(line)
            seeds, struck, points = seeds + done, struck + faults, points + passed
            failures += len(failed)
            for seed, why in failed:
                print(f"\nseed {seed}: {why}\n  replay: {sys.argv[0]} --replay {seed}", flush=True)
            seconds = time.monotonic() - begin
            print(
                f"\r{seeds:,} seeds, {struck:,} faults, {points:,} points, {failures} failed, "
                f"{seeds / seconds:.0f} seeds/s",
                end="",
                flush=True,
            )
    for worker in workers:
        worker.terminate()
    print()
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
