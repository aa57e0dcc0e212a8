"""``threading``, ``time`` and their like, of the world that the seed moves."""

from __future__ import annotations

import uuid as real_uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fault_simulation.world import Died, Thread, world


class RLock:
    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._count = 0
        self._waiting: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = world()
        thread = here.current
        if thread is not None and not thread.process.alive:
            raise Died
        if self._count and self._owner is thread:
            self._count += 1
            return True
        while self._count:
            if not blocking:
                return False
            assert thread is not None, "a lock is held where no thread runs"
            self._waiting.append(thread)
            here.block()
        self._owner, self._count = thread, 1
        return True

    def release(self) -> None:
        if self._owner is not world().current:  # a thread that dies has lost it already
            return
        self._count -= 1
        if not self._count:
            self._owner = None
            self.hand_on()

    def hand_on(self) -> None:
        if self._waiting:
            world().unblock(self._waiting.popleft())

    def give_up(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        self.hand_on()
        return count

    def take_again(self, count: int) -> None:
        self.acquire()
        self._count = count

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


class Condition:
    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[Thread] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        here = world()
        thread = here.current
        assert thread is not None
        count = self._lock.give_up()
        self._waiting.append(thread)
        here.block(None if timeout is None else here.now + max(timeout, 0.0))
        woken = thread not in self._waiting
        if not woken:
            self._waiting.remove(thread)
        self._lock.take_again(count)
        return woken

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            thread = self._waiting.pop(0)
            world().unblock(thread)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Semaphore:
    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._condition = Condition()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        here = world()
        end = None if timeout is None else here.now + timeout
        with self._condition:
            while not self._value:
                if not blocking or (end is not None and here.now >= end):
                    return False
                self._condition.wait(None if end is None else end - here.now)
            self._value -= 1
            return True

    def release(self, n: int = 1) -> None:
        with self._condition:
            self._value += n
            self._condition.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


class Event:
    def __init__(self) -> None:
        self._set = False
        self._condition = Condition()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._condition.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            with self._condition:
                self._condition.wait(timeout)
        return self._set


class SimThread:
    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: Any = None,
        daemon: bool | None = None,
    ) -> None:
        self.name, self._target, self._args, self._kwargs = name, target, tuple(args), kwargs or {}
        self.ident: int | None = None
        self._thread: Thread | None = None
        self._over = Event()

    def _work(self) -> None:
        try:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)
        finally:
            self._over.set()

    def start(self) -> None:
        here = world()
        assert here.current is not None
        self.ident = id(self)
        self._thread = Thread(here.current.process, self._work, self.name)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.done and not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._over.wait(timeout)


class Threading:
    """For ``import threading``."""

    Lock = RLock = RLock
    Condition = Condition
    Semaphore = BoundedSemaphore = Semaphore
    Event = Event
    Thread = SimThread

    @staticmethod
    def current_thread() -> Any:
        return world().current

    @staticmethod
    def main_thread() -> Any:
        return None

    @staticmethod
    def get_ident() -> int:
        return id(world().current)


class Serial:
    """For ``ThreadPoolExecutor``: one after the other will do where threads only save time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Serial:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def map(self, function: Callable[..., Any], *things: Iterable[Any]) -> Iterator[Any]:
        return iter([function(*each) for each in zip(*things, strict=False)])


def _clock() -> float:
    here = world()
    return here.now + (here.current.process.clock if here.current is not None else 0.0)


def _cpu() -> float:
    """Calls take time, now and then much: so the planner shares some steps out."""
    here = world()
    here.cpu += 0.2 if here.random.random() < 0.02 else 1e-5
    return here.cpu


class Time:
    """For ``import time``."""

    time = staticmethod(_clock)
    perf_counter = staticmethod(_cpu)
    thread_time = staticmethod(_cpu)

    @staticmethod
    def time_ns() -> int:
        return int(_clock() * 1e9)

    @staticmethod
    def monotonic() -> float:
        return world().now

    @staticmethod
    def monotonic_ns() -> int:
        return int(world().now * 1e9)

    @staticmethod
    def sleep(seconds: float) -> None:
        here = world()
        here.block(here.now + seconds)


class Uuid:
    """For ``import uuid``."""

    UUID = real_uuid.UUID

    @staticmethod
    def uuid4() -> real_uuid.UUID:
        return real_uuid.UUID(int=world().random.getrandbits(128), version=4)


class Collector:
    """For ``import gc``."""

    @staticmethod
    def freeze() -> None: ...

    @staticmethod
    def unfreeze() -> None: ...


@contextmanager
def nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield
