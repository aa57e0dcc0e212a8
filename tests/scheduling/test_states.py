"""A box's task: four states, no wake-up is lost, and a box with one lane is never on two workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from headgate.scheduling.states import Task, TaskState


def test_the_four_states_of_a_box_with_one_lane() -> None:
    task = Task(1)
    states = [task.state]
    assert task.arrive()
    states.append(task.state)
    assert not task.begin(more=False)
    states.append(task.state)
    assert not task.arrive(), "the box runs: nobody can be told yet"
    states.append(task.state)
    assert task.finish(more=True), "what came meanwhile is told now"
    states.append(task.state)
    assert states == [
        TaskState.NOTHING,
        TaskState.SCHEDULED,
        TaskState.RUNNING,
        TaskState.RUNNING_AND_SCHEDULED,
        TaskState.SCHEDULED,
    ]


def test_word_that_comes_while_a_box_runs_is_kept_whatever_the_worker_saw() -> None:
    task = Task(1)
    task.arrive()
    task.begin(more=False)
    task.arrive()
    assert task.finish(more=False)
    assert task.state is TaskState.SCHEDULED


def test_a_task_is_told_once() -> None:
    task = Task(1)
    assert [task.arrive() for _ in range(3)] == [True, False, False]


def test_a_box_with_several_lanes_is_told_of_again_while_lanes_are_free() -> None:
    task = Task(3)
    assert task.arrive()
    assert task.begin(more=True)
    assert task.begin(more=True)
    assert not task.begin(more=True), "no lane is left"
    assert task.finish(more=True)


def test_a_box_is_never_given_to_more_workers_than_it_has_lanes() -> None:
    task = Task(2)
    task.arrive()
    task.begin(more=True)
    task.begin(more=True)
    with pytest.raises(AssertionError, match="more workers than it has lanes"):
        task.begin(more=False)


def test_a_box_that_does_not_run_cannot_finish() -> None:
    with pytest.raises(AssertionError, match="was not running"):
        Task(1).finish(more=False)


# --- every interleaving of a small system ---------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Tuples still to come, tuples queued, workers inside, and whether the policy knows of a task."""

    to_come: int
    queued: int
    inside: int
    known: bool
    task: tuple[int, bool, bool]


def restored(world: World, lanes: int) -> Task:
    task = Task(lanes)
    task.running, task.scheduled, task._told = world.task
    return task


def saved(world: World, task: Task, born: bool) -> World:
    return replace(world, known=world.known or born, task=(task.running, task.scheduled, task._told))


def steps(world: World, lanes: int, workers: int) -> list[World]:
    """All that can happen next: a tuple comes; a worker takes some; a worker leaves."""
    following = []
    if world.to_come:
        task = restored(world, lanes)
        come = replace(world, to_come=world.to_come - 1, queued=world.queued + 1)
        following.append(saved(come, task, task.arrive()))
    # A worker enters only if the policy knows of a task; that word is then used up.
    if world.known and world.queued and world.inside < min(workers, lanes):
        for taken in range(1, world.queued + 1):
            task = restored(world, lanes)
            left = replace(world, queued=world.queued - taken, inside=world.inside + 1, known=False)
            following.append(saved(left, task, task.begin(more=left.queued > 0)))
    if world.inside:
        task = restored(world, lanes)
        out = replace(world, inside=world.inside - 1)
        following.append(saved(out, task, task.finish(more=out.queued > 0)))
    return following


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_interleaving_loses_a_wake_up(lanes: int, workers: int) -> None:
    """From every state that can be reached: if tuples wait, then somebody is inside or the policy knows."""
    start = World(6, 0, 0, False, (0, False, False))
    seen, todo = {start}, [start]
    while todo:
        world = todo.pop()
        task = restored(world, lanes)
        assert world.inside == task.running <= lanes
        if world.queued:
            assert world.known or world.inside, f"tuples wait and nobody will come: {world}"
            if world.inside < lanes:
                assert world.known, f"a lane is free, tuples wait, and the policy does not know: {world}"
        following = steps(world, lanes, workers)
        if not following:
            assert world == replace(world, to_come=0, queued=0, inside=0), f"stuck: {world}"
        for after in following:
            if after not in seen:
                seen.add(after)
                todo.append(after)
    assert len(seen) > 30
