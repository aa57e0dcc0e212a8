"""A real server of S3, and a way to it on which requests take time, are counted, and lose their answers.

The server is moto's, with one request at a time: so it keeps ``If-None-Match: *`` whatever comes at once.
(Adobe's S3Mock 4.11, which works on several requests at once, let two of eight writers create one name in 57
of 100 races.)
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[str]:
    """The server's address; it has one bucket."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT")).close()
        yield address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def options(address: str) -> dict[str, str]:
    """What a client of the server needs to know."""
    return {
        "aws_endpoint": address,
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }


class Way:
    """A proxy in front of the server."""

    def __init__(self, server: str, delay: float = 0.0) -> None:
        self.seen: list[tuple[str, str]] = []
        """Methods and keys, in the order in which they came."""
        self.lost: Callable[[str, str], bool] = lambda method, key: False
        """Whether the store does what is asked and the answer does not arrive."""
        self.blind = False
        """Preconditions are not passed on, as by a store that does not know them."""
        self.lock = threading.Lock()
        way, target = self, server.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                method, key = self.command, self.path.removeprefix(f"/{BUCKET}").lstrip("/")
                body = self._body()
                with way.lock:
                    way.seen.append((method, key))
                time.sleep(delay)
                asked = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                if way.blind:
                    asked = {n: v for n, v in asked.items() if n.lower() != "if-none-match"}
                upstream = http.client.HTTPConnection(target)
                upstream.request(method, self.path, body, asked)
                answer = upstream.getresponse()
                data = answer.read()
                upstream.close()
                if way.lost(method, key):
                    self.close_connection = True
                    self.connection.close()
                    return
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("content-length") if method == "HEAD" else str(len(data))
                self.send_header("content-length", length or "0")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers.get("content-length") or 0))

            def log_message(self, *args: Any) -> None:
                """Be quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
