"""Recollection bins under all interleavings: other threads free blocks while their owner collects.

A finaliser that runs on the owner's own thread in the middle of collecting is one more who frees, at any of
the owner's operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from choice_points import Monitor, Setup, Violation, Worker
from headgate.memory import recollection
from instrumented import Cell, load
from interleavings import explore
from random_interleavings import replay, search


def freed_once(blocks: int) -> Monitor:
    """Told every block that the owner takes back: each once, and none is missing at the end."""

    def step(back: frozenset[int], block: int) -> frozenset[int]:
        if block in back:
            raise Violation("twice", f"block {block} was freed before")
        return back | {block}

    def end(back: frozenset[int]) -> None:
        if len(back) != blocks:
            raise Violation("lost", f"{blocks - len(back)} blocks never came back")

    return Monitor(frozenset(), step, end)


def freeing(givers: int, each: int, replaced: Mapping[str, str] | None = None) -> Setup:
    """Givers free blocks, each its own; the owner collects from all bins until a last look after the end."""
    module: Any = load(recollection, replaced)
    blocks = givers * each

    def setup() -> Sequence[Worker]:
        bins = module.Bins(range(givers))
        back = freed_once(blocks)
        ended: list[Cell[bool]] = [Cell(False) for _ in range(givers)]

        def giver(number: int) -> Worker:
            def give() -> None:
                at = 0
                while at < each:
                    bins.give(number, 1 + number * each + at)
                    at += 1
                ended[number].store(True)

            return give

        def owner() -> None:
            last = False
            while not last:
                last = True
                number = 0
                while number < givers:
                    last = ended[number].load() and last
                    number += 1
                number = 0
                while number < givers:
                    found = bins.collect(number)
                    while found:
                        back.tell(found.pop())
                    number += 1

        return [owner, *[giver(number) for number in range(givers)]]

    return setup


@pytest.mark.parametrize(("givers", "each"), [(1, 3), (2, 2), (3, 1)])
def test_nothing_is_lost_and_nothing_freed_twice_and_nobody_waits(givers: int, each: int) -> None:
    found = explore(freeing(givers, each))
    print(f"\n{givers} givers, {each} blocks each: {found}")
    assert found.waiting == 0
    assert None in found.results("try_dequeue")
    assert found.states > 30


LOOP = "        while (block := bin_.try_dequeue()) is not None:\n            found.append(block)\n"

ALL_AT_ONCE = "        found = bin_.items()\n"
EMPTIED = "        while bin_.try_dequeue() is not None:\n            pass\n"
ALL_BUT_ONE = "        while len(bin_) > 1:\n            found.append(bin_.try_dequeue())\n"

MUTANTS = {
    "a bin is emptied after it was read": ({LOOP: ALL_AT_ONCE + EMPTIED}, "lost"),
    "what was read stays in the bin": ({LOOP: ALL_AT_ONCE}, "twice"),
    "the last block stays in the bin": ({LOOP: ALL_BUT_ONE}, "lost"),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_found(mutant: tuple[Mapping[str, str], str]) -> None:
    replaced, kind = mutant
    with pytest.raises(Violation) as found:
        explore(freeing(2, 2, replaced), looking_for=kind)
    print(f"\n{found.value}")
    with pytest.raises(Violation) as again:
        replay(freeing(2, 2, replaced), found.value.schedule, longest=2_000)
    assert again.value.kind == kind


def test_larger_cases_at_random() -> None:
    found = search(freeing(5, 8), seed=1, steps=100_000)
    print(f"\n5 givers, 8 blocks each: {found}")
    assert found.executions >= 10
