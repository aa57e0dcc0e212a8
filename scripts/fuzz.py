"""Gives Headgate inputs that nobody would write, on all cores: `make fuzz-inputs INPUTS=1000000`.

    scripts/fuzz.py --inputs 1000000
    scripts/fuzz.py --replay "JSON" 4711       # one input, with the traceback of what is wrong

Every answer must be a result or an error that explains itself.  What is neither, or takes longer than
`--longest` seconds, or ends the process, is printed with the seed that replays it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import fuzzing  # noqa: E402

PIECE = 500
"""Inputs of one kind in a row."""


def work(first: int, inputs: int, step: int, longest: int) -> None:
    """Every ``step``-th piece of the inputs; a line before each input's answer would cost more than it."""
    os.nice(5)
    targets = list(fuzzing.TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        for piece in range(first // PIECE, (first + inputs) // PIECE, step):
            target = targets[piece % len(targets)]
            counts: collections.Counter[str] = collections.Counter()
            wrong = []
            for seed in range(piece * PIECE, (piece + 1) * PIECE):
                print(json.dumps({"at": [target, seed]}), flush=True) if seed % 50 == 0 else None
                signal.alarm(longest)
                how, why = fuzzing.try_one(target, seed, Path(folder))
                signal.alarm(0)
                counts[how] += 1
                if how == "wrong":
                    wrong.append((seed, why))
            print(json.dumps({"target": target, "counts": counts, "wrong": wrong}), flush=True)


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--inputs", type=int, default=1_000_000, help="how many (default: a million)")
    given.add_argument("--first", type=int, default=0, help="the first seed")
    given.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    given.add_argument("--longest", type=int, default=60, help="seconds that an input may take")
    given.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    given.add_argument("--replay", nargs=2, metavar=("TARGET", "SEED"), help="run this input alone")
    given.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = given.parse_args()
    if options.replay:
        target, seed = options.replay
        with tempfile.TemporaryDirectory() as folder:
            fuzzing.TARGETS[target](random.Random(f"{target} {seed}"), Path(folder))
        return 0
    if options.work:
        work(options.first, options.inputs, options.processes, options.longest)
        return 0
    workers = []
    for number in range(options.processes):
        own = [f"--first={options.first + PIECE * number}", f"--inputs={options.inputs - PIECE * number}"]
        common = ["--work", f"--processes={options.processes}", f"--longest={options.longest}"]
        command = [sys.executable, __file__, *common, *own]
        quiet = subprocess.DEVNULL
        workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True))
    totals: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    begin, failures = time.monotonic(), 0
    last: list[object] = [None] * len(workers)
    alive = set(range(len(workers)))
    while alive and time.monotonic() - begin < options.seconds:
        for number in sorted(alive):
            stream = workers[number].stdout
            assert stream is not None
            line = stream.readline()
            if not line:
                alive.discard(number)
                if workers[number].wait() != 0:
                    failures += 1
                    print(f"\na process ended with {workers[number].returncode}, at or after {last[number]}")
                continue
            found = json.loads(line)
            if "at" in found:
                last[number] = found["at"]
                continue
            totals[found["target"]].update(found["counts"])
            failures += len(found["wrong"])
            for seed, why in found["wrong"]:
                print(f'\n{found["target"]} {seed}: {why}\n  replay: --replay "{found["target"]}" {seed}')
        done = sum(sum(counts.values()) for counts in totals.values())
        rate = done / (time.monotonic() - begin)
        print(f"\r{done:,} inputs, {failures} wrong, {rate:.0f} inputs/s", end="", flush=True)
    for worker in workers:
        worker.terminate()
    print()
    for target, counts in sorted(totals.items()):
        print(f"{target:20} " + ", ".join(f"{count:,} {how}s" for how, count in sorted(counts.items())))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
