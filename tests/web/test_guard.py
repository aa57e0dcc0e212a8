"""Who may see and change what, asked over real HTTP; and what the application answers to monitoring."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.api.running import Running
from headgate.errors import PipelineError
from headgate.web import connections
from headgate.web.guard import LONGEST_BODY, Guard
from headgate.web.metrics import _KNOWN
from headgate.web.server import Page
from waiting import SOON, eventually

pytestmark = pytest.mark.usefixtures("sockets")


@dataclass
class Site:
    """A run with its page."""

    page: Page
    running: Running

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.page.port, timeout=60)
        connection.request(method, path, body, {name.replace("_", "-"): v for name, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers

    def command(self, name: str, token: str | None = None, **arguments: Any) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"command": name, "arguments": arguments}).encode()
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {token or self.page.token}"}
        status, text, _ = self.ask("POST", "/api/command", body, **given)
        return status, json.loads(text)


@pytest.fixture
def site() -> Iterator[Site]:
    app = hg.App("guarded")
    rows = app.source("rows", hg.from_rate(1_000, burst=50))
    rows.filter("value % 2 = 0", name="even").to("even", hg.to_function(_drop), qos=hg.QoS([(0, 1), (9, 0)]))
    rows.filter("1 / (value - 500) < 2").to("bad", hg.to_function(_drop))
    with app.start("threads") as running:
        line = running._line
        eventually(lambda: running.report().queries["bad"].error)
        with Page(True, line) as page:
            eventually(lambda: "even" in line.watch.totals and line.watch.totals["even"].seconds > 0)
            yield Site(page, running)


def _drop(query: str, batch: Any) -> None:
    pass


def test_looking_is_free_on_loopback_and_changing_needs_the_token(site: Site) -> None:
    status, _, headers = site.ask("GET", "/")
    assert status == 200
    assert "script-src 'self'" in headers["content-security-policy"]
    assert site.ask("GET", "/static/main.js")[0] == 200
    assert json.loads(site.ask("GET", "/api/network")[1])["app"] == "guarded"
    assert site.command("set", "wrong" * 8, what="policy", value="fcfs")[0] == 401
    assert site.running.report().policy != "fcfs"
    assert site.command("set", what="policy", value="fcfs")[0] == 200
    assert site.running.report().policy == "fcfs"
    status, answer = site.command("set", what="policy", value="fastest")
    assert (status, "fastest" in answer["error"]) == (400, True)
    points = [[0, 1], [2, 0]]
    assert site.command("set", what="qos", value={"query": "even", "points": points})[0] == 200
    network = json.loads(site.ask("GET", "/api/network")[1])
    assert network["queries"][0]["qos"] == points
    _, answer = site.command("set", what="qos", value={"query": "odd", "points": points})
    assert "no query 'odd'" in answer["error"]


def test_no_code_goes_over_the_wire(site: Site, tmp_path: Any) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit(7)")
    status, answer = site.command("set", what="add", value=str(tmp_path / "evil.py"))
    assert (status, "Python" in answer["error"]) == (400, True)
    assert site.command("history")[0] == 400
    assert site.ask("GET", "/static/../server.py")[0] == 404
    assert site.ask("GET", "/static/%2e%2e/server.py")[0] == 404


def test_other_sites_and_large_requests_are_refused(site: Site) -> None:
    own, token = f"127.0.0.1:{site.page.port}", f"Bearer {site.page.token}"
    command = json.dumps({"command": "set", "arguments": {"what": "workers", "value": 1}}).encode()
    good = {"Content-Type": "application/json", "Authorization": token}
    assert site.ask("GET", "/api/network", Host="evil.example")[0] == 403
    assert site.ask("GET", "/metrics", Sec_Fetch_Site="cross-site")[0] == 403
    assert site.ask("POST", "/api/command", command, **good, Origin="http://evil.example")[0] == 403
    assert site.ask("POST", "/api/command", command, **good | {"Content-Type": "text/plain"})[0] == 415
    assert site.ask("POST", "/api/command", b"x" * (LONGEST_BODY + 1), **good)[0] == 413
    assert site.ask("POST", "/api/command", b"[1]", **good)[0] == 400
    # A body in chunks is refused, also if it claims a length: it could be of any size.
    lies = good | {"Transfer-Encoding": "chunked", "Content-Length": "5"}
    assert site.ask("POST", "/api/command", b"5\r\nhello\r\n0\r\n\r\n", **lies)[0] == 413
    assert site.ask("POST", "/api/command", command, **good, Origin=f"http://{own}")[0] == 200


def test_silent_and_too_many_connections_are_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", site.page.port), timeout=SOON)

    monkeypatch.setattr(connections, "SILENT", 0.01)
    with connect() as silent:
        silent.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: and no more")
        with suppress(ConnectionError):
            assert silent.recv(1) == b""
    # One that asks in time stays, also while its answer takes longer.
    monkeypatch.setattr(connections, "SILENT", 60.0)
    with connect() as stream:
        stream.sendall(b"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert stream.recv(12) == b"HTTP/1.1 200"
        monkeypatch.setattr(connections, "MOST_CONNECTIONS", 1)
        with connect() as another, suppress(ConnectionError):
            assert another.recv(1) == b""
    monkeypatch.undo()
    eventually(lambda: site.ask("GET", "/healthz")[0])


def test_away_from_loopback_everything_but_health_needs_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match="HEADGATE_TOKEN"):
        Page("0.0.0.0:8499", None)  # type: ignore[arg-type]
    monkeypatch.setenv("HEADGATE_TOKEN", "short")
    with pytest.raises(PipelineError, match="at least 16"):
        Page("0.0.0.0:8499", None)  # type: ignore[arg-type]
    guard, there = Guard("0.0.0.0", "a" * 16), {"host": "server:8411"}
    assert guard.refusal("GET", "/api/network", there, public=False) is not None
    assert guard.refusal("GET", "/metrics", there, public=False) is not None
    assert guard.refusal("GET", "/healthz", there, public=True) is None
    token = there | {"authorization": f"Bearer {'a' * 16}"}
    assert guard.refusal("GET", "/api/network", token, public=False) is None


def test_metrics_and_health_tell_what_a_run_does(site: Site) -> None:
    status, text, _ = site.ask("GET", "/metrics")
    assert status == 200
    line = re.compile(r'^headgate_\w+\{app="guarded"(,\w+="[^"]*")*\} -?[0-9.e+-]+$')
    rows = [row for row in text.splitlines() if not row.startswith("#")]
    assert all(line.match(row) for row in rows)
    values = {name: float(value) for name, _, value in (row.rpartition(" ") for row in rows)}
    assert values['headgate_query_up{app="guarded",query="even"}'] == 1
    assert values['headgate_query_up{app="guarded",query="bad"}'] == 0
    count = values['headgate_query_latency_seconds_count{app="guarded",query="even"}']
    assert count == values['headgate_query_latency_seconds_bucket{app="guarded",query="even",le="+Inf"}'] > 0
    assert values['headgate_box_rows_in_total{app="guarded",box="even"}'] > 0
    told = {row.split()[2] for row in text.splitlines() if row.startswith("# TYPE")}
    assert {re.sub("_(bucket|sum|count)$", "", row.partition("{")[0]) for row in rows} == told
    assert site.ask("GET", "/healthz")[0] == 200
    status, why, _ = site.ask("GET", "/readyz")
    assert (status, "'bad' is failed" in why) == (503, True)


def test_every_metric_is_documented_and_the_dashboard_asks_for_metrics_that_exist() -> None:
    names = {name for name, _, _ in _KNOWN}
    docs = Path(__file__).parents[2] / "docs"
    told = set()
    for row in (docs / "operations.md").read_text().splitlines():
        before = ""
        for name in re.findall(r"`((?:headgate)?_[a-z_]+)`", row.partition("|")[2].partition("|")[0]):
            before = name if name.startswith("headgate") else before
            told.add(name if name.startswith("headgate") else "_".join(before.split("_")[:2]) + name)
    assert told == names
    asked = re.findall(r"headgate_[a-z_]+", (docs / "grafana.json").read_text())
    assert {re.sub("_bucket$", "", name) for name in asked} <= names
