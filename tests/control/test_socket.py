"""A running application owns one socket: it answers every command, survives every mistake, and is alone."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.control import socket as control
from headgate.control.socket import Control, ControlError, NotRunning, call, running, socket_path
from headgate.errors import PipelineError

OWNER = """
import sys
from headgate.control.socket import Control
with Control(sys.argv[1], {}):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of our own, with a name short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="hg-"))
    monkeypatch.setenv("HEADGATE_RUNTIME", str(made))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def owner() -> Iterator[Any]:
    """``owner(name)``: another process that runs an application of that name."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", OWNER, name], stdin=pipe, stdout=pipe, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"got": arguments}


def said(path: Path, line: bytes) -> dict[str, Any]:
    """The answer to exactly these bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        answer = json.loads(connection.makefile().read())
    assert isinstance(answer, dict)
    return answer


# --- answers --------------------------------------------------------------------------------------------


def test_a_command_is_answered_with_its_arguments() -> None:
    with Control("shop", {"echo": echo}):
        assert call("shop", "echo", query="carts", n=[1, {"a": None}]) == {
            "got": {"query": "carts", "n": [1, {"a": None}]}
        }


def test_arguments_may_have_any_name() -> None:
    with Control("shop", {"echo": echo}):
        assert call("shop", "echo", command="x", app_name="y")["got"] == {"command": "x", "app_name": "y"}


def test_large_answers_arrive_whole() -> None:
    with Control("shop", {"all": lambda _: {"rows": ["x" * 1000] * 5000}}):
        assert len(call("shop", "all")["rows"]) == 5000


def test_what_is_not_a_number_is_null() -> None:
    """JSON has no NaN, and others than Python read these answers."""
    with Control("shop", {"status": lambda _: {"p50": float("nan"), "deep": [(float("inf"), 1.5)]}}):
        assert call("shop", "status") == {"p50": None, "deep": [[None, 1.5]]}


def test_an_unknown_command_lists_the_known_ones() -> None:
    with Control("shop", {"status": echo, "restart": echo}):
        with pytest.raises(
            ControlError, match=r"'shop' knows no command 'dance'\. It knows: restart, status"
        ):
            call("shop", "dance")
        assert call("shop", "status") == {"got": {}}


def test_a_handler_that_raises_gives_an_error_and_the_next_command_works() -> None:
    def refuse(arguments: dict[str, Any]) -> dict[str, Any]:
        raise PipelineError(f"There is no query '{arguments['query']}'.")

    def crash(arguments: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("page")

    handlers = {"refuse": refuse, "crash": crash, "odd": lambda _: {"a": object()}, "echo": echo}
    with Control("shop", handlers):
        with pytest.raises(ControlError, match=r"^There is no query 'x'\.$"):
            call("shop", "refuse", query="x")
        with pytest.raises(ControlError, match="'crash' failed: KeyError: 'page'"):
            call("shop", "crash")
        with pytest.raises(ControlError, match="'odd' failed: TypeError"):
            call("shop", "odd")
        assert call("shop", "echo") == {"got": {}}


@pytest.mark.parametrize(
    "line",
    [b"\n", b"hello\n", b"[]\n", b"{}\n", b'{"command": 1}\n', b'{"command": "echo", "arguments": 3}\n'],
)
def test_nonsense_gets_an_answer(line: bytes) -> None:
    with Control("shop", {"echo": echo}) as open_one:
        assert "one line of JSON" in said(open_one.path, line)["error"]
        assert call("shop", "echo") == {"got": {}}


def test_a_line_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LONGEST_LINE", 100)
    with Control("shop", {"echo": echo}) as open_one:
        assert "error" in said(open_one.path, b"x" * 200)


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")])
def test_a_deeply_nested_message_gets_an_answer(brackets: tuple[bytes, bytes]) -> None:
    opening, closing = brackets
    deep = opening * 100_000 + b"1" + closing * 100_000
    with Control("shop", {"echo": echo}) as open_one:
        assert "one line of JSON" in said(open_one.path, deep + b"\n")["error"]
        hidden = b'{"command": "echo", "arguments": {"a": ' + deep + b"}}\n"
        assert "one line of JSON" in said(open_one.path, hidden)["error"]
        assert call("shop", "echo") == {"got": {}}


def test_a_message_that_is_too_long_is_answered_with_the_limit() -> None:
    """Also while the sender is still sending: the answer is not lost with the rest of the message."""
    with Control("shop", {"echo": echo}) as open_one:
        long = b'{"command": "echo", "arguments": {"a": "' + b"x" * (8 << 20) + b'"}}\n'
        assert "longer than 1,048,576 bytes" in said(open_one.path, long)["error"]
        with pytest.raises(ControlError, match="longer than 1,048,576 bytes"):
            call("shop", "echo", a="x" * (8 << 20))
        assert call("shop", "echo") == {"got": {}}


def test_a_deeply_nested_answer_is_an_error_of_the_application() -> None:
    def deep(arguments: dict[str, Any]) -> dict[str, Any]:
        made: list[Any] = []
        for _ in range(100_000):
            made = [made]
        return {"deep": made}

    with Control("shop", {"deep": deep, "echo": echo}):
        with pytest.raises(ControlError, match="'deep' failed: RecursionError"):
            call("shop", "deep")
        assert call("shop", "echo") == {"got": {}}


def test_one_who_connects_and_says_nothing_keeps_nobody_waiting() -> None:
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with Control("shop", {"echo": echo}) as open_one, silent:
        silent.connect(str(open_one.path))
        assert call("shop", "echo") == {"got": {}}


def test_handlers_are_called_one_at_a_time() -> None:
    """Two that are inside together would meet at the barrier."""
    barrier = threading.Barrier(2)
    met: list[bool] = []

    def enter(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            barrier.wait(timeout=0.3)
            met.append(True)
        except threading.BrokenBarrierError:
            met.append(False)
        return {}

    with Control("shop", {"enter": enter}):
        callers = [threading.Thread(target=call, args=("shop", "enter")) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert met == [False] * 4


# --- one application, one owner -------------------------------------------------------------------------


def test_nothing_is_left_behind(folder: Path) -> None:
    with Control("shop", {}):
        assert running() == ["shop"]
        assert list(folder.iterdir())
    assert running() == []
    assert list(folder.iterdir()) == []


def test_an_application_can_be_opened_again_after_it_was_closed() -> None:
    one = Control("shop", {"echo": echo})
    for _ in range(3):
        with one:
            assert call("shop", "echo") == {"got": {}}
        one.close()


def test_a_second_application_of_that_name_is_refused(owner: Any) -> None:
    process = owner("shop")
    with pytest.raises(ControlError, match=rf"'shop' is already running \(process {process.pid}\)"):
        Control("shop", {}).open()
    assert running() == ["shop"], "it was not disturbed"
    with Control("other", {}):
        assert running() == ["other", "shop"]


def test_the_same_process_cannot_run_it_twice_either() -> None:
    with Control("shop", {"echo": echo}):
        with pytest.raises(ControlError, match=f"process {os.getpid()}"):
            Control("shop", {}).open()
        assert call("shop", "echo") == {"got": {}}


def test_what_a_killed_process_left_is_taken_over(owner: Any) -> None:
    process = owner("shop")
    process.kill()
    process.wait()
    assert socket_path("shop").exists()
    assert running() == []
    with pytest.raises(NotRunning, match="'shop' is not running"):
        call("shop", "status")
    with Control("shop", {"echo": echo}):
        assert call("shop", "echo") == {"got": {}}


def test_of_many_that_start_at_once_one_wins() -> None:
    """Also while others close: the lock is never on a file that has been removed."""
    for _ in range(20):
        barrier, opened, refused = threading.Barrier(4), [], []

        def start(barrier: threading.Barrier, opened: list[Control], refused: list[Exception]) -> None:
            one = Control("shop", {"echo": echo})
            barrier.wait()
            try:
                one.open()
                opened.append(one)
            except ControlError as error:
                refused.append(error)

        threads = [threading.Thread(target=start, args=(barrier, opened, refused)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(opened), len(refused)) == (1, 3)
        assert call("shop", "echo") == {"got": {}}
        opened[0].close()


# --- names and folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["shop", "a/b", "..", ".", "../../x", "Läden & Co\n", "*", "x" * 300, "日本" * 60, "a%2Fb", "\0"]
)
def test_an_application_may_have_any_name(folder: Path, name: str) -> None:
    with Control(name, {"echo": echo}) as open_one:
        assert open_one.path.parent == folder
        assert len(os.fsencode(open_one.path)) <= 107
        assert running() == [name]
        assert call(name, "echo") == {"got": {}}
        assert call(None, "echo") == {"got": {}}


def test_names_that_look_alike_are_different_applications() -> None:
    with Control("a/b", {}), Control("a%2Fb", {}), Control("x" * 300, {}), Control("x" * 301, {}):
        assert len(running()) == 4


def test_others_cannot_use_the_socket(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    inner = folder / "deep" / "er"
    monkeypatch.setenv("HEADGATE_RUNTIME", str(inner))
    with Control("shop", {}) as open_one:
        assert stat.S_IMODE(inner.stat().st_mode) == 0o700
        assert stat.S_IMODE(open_one.path.stat().st_mode) == 0o600


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(ControlError, match="others can write"):
        Control("shop", {}).open()


def test_a_command_does_not_trust_a_folder_that_others_can_write_to(folder: Path) -> None:
    with Control("shop", {"echo": echo}):
        folder.chmod(0o770)
        for ask in (lambda: call("shop", "echo"), lambda: call(None, "echo"), running):
            with pytest.raises(ControlError, match="mode 0770: others can write to it"):
                ask()
        folder.chmod(0o700)
        assert call("shop", "echo") == {"got": {}}


def test_a_command_does_not_trust_the_folder_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with Control("shop", {"echo": echo}):
        me = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        for ask in (lambda: call("shop", "echo"), lambda: call(None, "echo"), running):
            with pytest.raises(ControlError, match=rf"belongs to .*\b{me}\b"):
                ask()


def test_a_command_does_not_trust_the_socket_of_another_user(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """In a folder of one's own, as when an administrator has moved it there."""
    me, lstat = os.geteuid(), os.lstat

    def foreign(path: Any, **options: Any) -> Any:
        found = lstat(path, **options)
        if not str(path).endswith(".sock"):
            return found
        return os.stat_result([*found[:4], me + 1, *found[5:]])

    with Control("shop", {"echo": echo}):
        monkeypatch.setattr(os, "lstat", foreign)
        with pytest.raises(ControlError, match=rf"socket .*shop.sock belongs to .*\b{me + 1}\b"):
            call("shop", "echo")
        monkeypatch.undo()
    with pytest.raises(ControlError):
        call("shop", "echo")


def test_a_command_does_not_follow_a_link_to_a_socket(folder: Path) -> None:
    with Control("shop", {"echo": echo}):
        (folder / "other.sock").symlink_to(socket_path("shop"))
        with pytest.raises(ControlError, match="is not a socket"):
            call("other", "echo")


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the kernel does not tell who is connected")
def test_who_is_at_the_other_end_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the files' owners were when they were looked at."""
    with Control("shop", {"echo": echo}) as open_one:
        me = os.geteuid()
        monkeypatch.setattr(control, "peer", lambda connection: me + 1)
        with pytest.raises(ControlError, match=rf"answered by .*\b{me + 1}\b"):
            call("shop", "echo")
        assert "another user" in said(open_one.path, b'{"command": "echo"}\n')["error"]


def test_a_folder_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("HEADGATE_RUNTIME", str(folder / "file" / "x"))
    with pytest.raises(ControlError, match="HEADGATE_RUNTIME"):
        Control("shop", {}).open()


def test_a_folder_with_too_long_a_name_is_an_error(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("HEADGATE_RUNTIME", str(folder / ("x" * 100)))
    with pytest.raises(ControlError, match="too long"):
        Control("shop", {}).open()


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("HEADGATE_RUNTIME")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert control.runtime_folder() == folder / "headgate"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert control.runtime_folder().name == f"headgate-{os.getuid()}"


# --- which application ----------------------------------------------------------------------------------


def test_nothing_running_says_what_to_do() -> None:
    with pytest.raises(NotRunning, match=r"No application is running\. Start one with `headgate run`"):
        call(None, "status")


def test_the_only_application_need_not_be_named() -> None:
    with Control("shop", {"echo": echo}):
        assert call(None, "echo") == {"got": {}}


def test_of_several_one_must_be_named() -> None:
    with Control("shop", {}), Control("other", {}):
        with pytest.raises(ControlError, match="Several applications are running: 'other', 'shop'"):
            call(None, "status")
        with pytest.raises(NotRunning, match=r"'third' is not running\. Running: 'other', 'shop'"):
            call("third", "status")


def test_an_application_that_does_not_answer_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller waits as long as it says; here that is shortened for it, and not for the application."""
    release, waits = threading.Event(), []
    real = socket.socket.settimeout

    def shorter(self: socket.socket, seconds: float | None) -> None:
        caller = threading.current_thread() is threading.main_thread()
        waits.extend([seconds] if caller else [])
        real(self, 0.05 if caller else seconds)

    monkeypatch.setattr(socket.socket, "settimeout", shorter)

    def never(arguments: dict[str, Any]) -> dict[str, Any]:
        release.wait()
        return {}

    with Control("shop", {"never": never}):
        with pytest.raises(ControlError, match="'shop' did not answer 'never' within"):
            call("shop", "never")
        assert waits == [control.PATIENCE]
        release.set()
