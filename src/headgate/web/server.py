"""Serves the page of a run, on a thread of its own: Starlette, server-sent events, static files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headgate.control.line import Line
from headgate.control.watching import Sample
from headgate.errors import HeadgateError, PipelineError
from headgate.web.connections import SILENT, Bounded
from headgate.web.data import dumps, event_data, history, network_data, overload, sample_data
from headgate.web.guard import FRAMED, HEADERS, LEAST_TOKEN, LONGEST_BODY, WIDGET, Guard, is_loopback
from headgate.web.metrics import metrics, unready

PORT = 8411
PORTS = 20
"""Ports that are tried from ``PORT`` on, where none was named."""
MOST_PAGES = 32
"""Pages that follow a run at the same time."""
HUNG = 30.0
"""A run that cannot be observed for so many seconds is not healthy."""
STATIC = Path(__file__).parent / "static"
COMMANDS = frozenset({"set", "restart", "add", "remove", "check"})
"""Commands that a page may send, where the run knows them."""
NO_CODE = "A page cannot load Python files; use `headgate set add FILE` on the machine."

PageOption = bool | int | str | None


class Page:
    """The page of one run: ``with Page(True, line): …``.

    ``where``: True for a free port on loopback, a port, or ``host:port``.  Another address than loopback
    needs a token of the user's own, in ``HEADGATE_TOKEN``.
    """

    def __init__(self, where: PageOption, line: Line) -> None:
        host, port = _address(where)
        given = os.environ.get("HEADGATE_TOKEN", "")
        if given and len(given) < LEAST_TOKEN:
            raise PipelineError(f"HEADGATE_TOKEN is too short; give it at least {LEAST_TOKEN} characters.")
        if not is_loopback(host) and not given:
            raise PipelineError(
                f"page={where!r}: any address but loopback needs a token; set HEADGATE_TOKEN to a secret of "
                f"at least {LEAST_TOKEN} characters."
            )
        self.token = given or secrets.token_urlsafe(24)
        self._line, self._guard = line, Guard(host, self.token)
        self._socket = _listen(host, port)
        self.host, self.port = host, self._socket.getsockname()[1]
        self._clients: list[asyncio.Queue[str | None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        config = uvicorn.Config(
            self._app(),
            http=Bounded,
            ws="none",
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="headgate-page", daemon=True)

    @property
    def address(self) -> str:
        """Where a browser finds it; the token is behind the #, which browsers do not send."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/#token={self.token}"

    @property
    def widget(self) -> str | None:
        """Where a notebook on this machine may frame it, to be looked at; None on other addresses."""
        return f"{self.address.partition('/#')[0]}{WIDGET}" if is_loopback(self.host) else None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        self._line.page, self._line.widget = self.address, self.widget
        self._line.watch.listeners.append(self._publish)
        return self

    def __exit__(self, *given: object) -> None:
        self._line.page = self._line.widget = None
        with contextlib.suppress(ValueError):
            self._line.watch.listeners.remove(self._publish)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hang_up)
        self._thread.join(5)
        self._socket.close()

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._server.serve([self._socket])

        asyncio.run(serve())

    def _hang_up(self) -> None:
        """Let open pages go, and then the server."""
        for queue in self._clients:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
        self._server.should_exit = True

    def _app(self) -> Starlette:
        routes = [
            Route("/", self._index),
            Route(WIDGET, self._index),
            Route("/api/network", self._network),
            Route("/api/stream", self._stream),
            Route("/api/command", self._command, methods=["POST"]),
            Route("/metrics", self._metrics),
            Route("/healthz", self._health),
            Route("/readyz", self._readiness),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        app = Starlette(routes=routes)
        app.add_middleware(BaseHTTPMiddleware, dispatch=self._judge)
        return app

    async def _judge(self, request: Request, go_on: RequestResponseEndpoint) -> Response:
        path = request.url.path
        public = path in ("/", WIDGET, "/healthz", "/readyz") or path.startswith("/static/")
        refusal = self._guard.refusal(request.method, path, request.headers, public=public)
        if refusal is not None:
            if refusal[0] == 401:
                await asyncio.sleep(0.25)  # guessing takes its time
            response: Response = JSONResponse({"error": refusal[1]}, refusal[0])
        else:
            response = await go_on(request)
        response.headers.update(FRAMED if path == WIDGET and is_loopback(self.host) else HEADERS)
        return response

    # --- looking ------------------------------------------------------------------------------------

    async def _index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def _network(self, request: Request) -> Response:
        watch = self._line.watch
        if not watch.samples:
            return Response(status_code=204)  # the run has not begun
        seen = watch.samples[-1].seen
        data = network_data(seen.network, watch.version, seen.engine)
        data["commands"] = sorted(COMMANDS & set(self._line.handlers))
        return JSONResponse(data)

    async def _stream(self, request: Request) -> Response:
        if len(self._clients) >= MOST_PAGES:
            return JSONResponse({"error": f"There are {MOST_PAGES} pages open already."}, 503)
        return StreamingResponse(self._follow(), media_type="text/event-stream")

    async def _follow(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue(8)
        self._clients.append(queue)
        try:
            past = await run_in_threadpool(history, self._line.watch)
            events = [event_data(event) for event in list(self._line.watch.events)[-50:]]
            yield _event({"samples": past, "events": events})
            while True:
                try:
                    text = await asyncio.wait_for(queue.get(), 15)
                except TimeoutError:
                    text = ": still here\n\n"
                if text is None:  # the run is over
                    return
                yield text
        finally:
            self._clients.remove(queue)

    def _publish(self, sample: Sample) -> None:
        """On the watching thread; without a page that looks on, nothing is encoded."""
        if self._clients and self._loop is not None:
            events = [event_data(event) for event in self._line.watch.events if event.at >= sample.seen.now]
            data = sample_data(sample, overload(self._line.watch))
            text = _event({"samples": [data], "events": events})
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._send, text)

    def _send(self, text: str) -> None:
        for queue in self._clients:
            if not queue.full():  # a browser that cannot follow misses samples
                queue.put_nowait(text)

    async def _metrics(self, request: Request) -> Response:
        text = await run_in_threadpool(metrics, self._line.watch)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _health(self, request: Request) -> Response:
        watch = self._line.watch
        hung = bool(watch.samples) and time.monotonic() - watch.at > max(HUNG, 5 * watch.every)
        states = [own.seen.state for own in watch.samples[-1].queries.values()] if watch.samples else []
        dead = bool(states) and all(state == "failed" for state in states)
        return PlainTextResponse("not well\n" if hung or dead else "ok\n", 503 if hung or dead else 200)

    async def _readiness(self, request: Request) -> Response:
        why = list(unready(self._line.watch))
        if not why:
            return PlainTextResponse("ready\n")
        told = self._guard.knows(request.headers) or is_loopback(self.host)
        return PlainTextResponse("\n".join(why) + "\n" if told else "not ready\n", 503)

    # --- changing -----------------------------------------------------------------------------------

    async def _command(self, request: Request) -> Response:
        try:
            body = await asyncio.wait_for(request.body(), SILENT)
        except (TimeoutError, ClientDisconnect):
            return JSONResponse({"error": "The request did not come as a whole."}, 408)
        try:
            if len(body) > LONGEST_BODY:
                raise ValueError
            given = json.loads(body)
            command, arguments = given["command"], given.get("arguments", {})
            if not isinstance(command, str) or not isinstance(arguments, dict):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return JSONResponse({"error": 'Send {"command": "…", "arguments": {…}}.'}, 400)
        handler = self._line.handlers.get(command) if command in COMMANDS else None
        if handler is None:
            return JSONResponse({"error": f"This run takes no command '{command}' from a page."}, 400)
        if command == "set" and arguments.get("what") == "add":
            return JSONResponse({"error": NO_CODE}, 400)
        try:
            answer: dict[str, Any] = await run_in_threadpool(handler, arguments)
        except HeadgateError as error:
            return JSONResponse({"error": str(error)}, 400)
        except Exception as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)
        return JSONResponse(json.loads(json.dumps(answer, default=str)))


def _event(data: object) -> str:
    return f"data: {dumps(data)}\n\n"


def _address(where: PageOption) -> tuple[str, int]:
    """Host and port; port 0 stands for the first free one."""
    if where is True:
        return "127.0.0.1", 0
    if isinstance(where, int):
        return "127.0.0.1", _port(where, where)
    host, found, port = str(where).rpartition(":")
    if not found or not host or not port.isdigit():
        raise PipelineError(f"page={where!r}: give True, a port such as 8411, or 'host:port'.")
    return host.strip("[]"), _port(int(port), where)


def _port(port: int, where: object) -> int:
    if not 1 <= port <= 65_535:
        raise PipelineError(f"page={where!r}: a port is a number from 1 to 65,535.")
    return port


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens; if no port was named, at the first free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port else [*range(PORT, PORT + PORTS), 0]
    for number in tried:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen()  # two may be bound to one port, but only one of them can listen
        except OSError as error:
            listener.close()
            if number == tried[-1]:
                raise PipelineError(
                    f"The page cannot be served at {host}:{port}: {error.strerror}; choose another port."
                ) from error
            continue
        return listener
    raise AssertionError("a port was tried")
