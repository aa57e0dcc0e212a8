"""A schema registry for the tests: Confluent's HTTP interface, as much of it as clients of schemas use."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RegistryServer:
    """Schemas in memory; ``with RegistryServer() as registry: registry.url``.

    ``asked`` has the paths of all requests; with ``login`` (a header's value) others are refused.
    """

    def __init__(self, login: str | None = None) -> None:
        self.login = login
        self.asked: list[str] = []
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                status, answer = outer._answer(self.path, body, self.headers.get("Authorization"))
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> RegistryServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: list[Any] | None = None) -> int:
        """The number of a schema, registered if it is new."""
        with self._lock:
            one = {"schema": schema, "schemaType": kind, "references": references or []}
            if one not in self._schemas:
                self._schemas.append(one)
            number = self._schemas.index(one) + 1
            versions = self._subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            return number

    def latest(self, subject: str) -> str:
        """The newest schema of a subject."""
        return str(self._schemas[self._subjects[subject][-1] - 1]["schema"])

    def _answer(self, path: str, body: Any, login: str | None) -> tuple[int, Any]:
        self.asked.append(path)
        if self.login is not None and login != self.login:
            return 401, {"error_code": 40101, "message": "User is denied"}
        match path.partition("?")[0].strip("/").split("/"):
            case ["schemas", "ids", number] if 0 < int(number) <= len(self._schemas):
                return 200, self._schemas[int(number) - 1]
            case ["schemas", "ids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions"] if body is not None:
                return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"))}
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                versions = self._subjects[subject]
                number = versions[-1] if version == "latest" else versions[int(version) - 1]
                return 200, {"id": number, "subject": subject, **self._schemas[number - 1]}
        return 404, {"error_code": 40401, "message": "Subject not found"}
