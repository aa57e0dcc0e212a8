"""The page in a real Chromium: what a person sees and does there."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from browser import Browser
from headgate.api.running import Running
from headgate.web.server import Page

pytestmark = [pytest.mark.usefixtures("sockets"), pytest.mark.xdist_group("browser")]
SEEN = "document.querySelectorAll('#rows tr').length"


def drop(query: str, batch: Any) -> None:
    pass


def follow(app: hg.App) -> Iterator[tuple[Running, Page]]:
    with app.start("threads", policy="fcfs") as running:
        running._line.watch.every = 0.2
        with Page(True, running._line) as page:
            yield running, page


@pytest.fixture
def shop() -> Iterator[tuple[Running, Page]]:
    """A tight query, a loose one, and one that fails."""
    app = hg.App("shop <b>&")
    rows = app.source("rows", hg.from_rate(2_000, burst=100))
    tight, loose = hg.QoS([(0, 1), (1, 1), (3, 0)]), hg.QoS([(0, 1), (60, 0)])
    rows.filter("value % 10 = 0", name="few").to("tight", hg.to_function(drop), qos=tight)
    rows.key_by("value").running("count(*) AS n").to("loose", hg.to_function(drop), qos=loose)
    rows.filter("1 / (value - 2000) < 2").to("bad", hg.to_function(drop), qos=loose)
    yield from follow(app)


@pytest.fixture
def wide() -> Iterator[tuple[Running, Page]]:
    """A thousand boxes."""
    app = hg.App("wide")
    rows = app.source("rows", hg.from_rate(20, burst=10))
    for number in range(500):
        narrow = rows.filter(f"value % 500 = {number}", name=f"filter-{number}")
        narrow.select("value", name=f"select-{number}").to(f"q{number}", hg.to_function(drop))
    yield from follow(app)


def test_a_person_sees_the_run_and_changes_it(shop: tuple[Running, Page], tmp_path: Path) -> None:
    running, served = shop
    with Browser() as page:
        page.open(served.address)
        page.wait(f"{SEEN} === 3")
        assert "token" not in page.run("location.href")  # it is not left where others see it
        assert page.text("#app") == "shop <b>&"
        # An error is seen, with the expression at fault.
        page.wait("document.querySelector('#banner').innerText.includes('division by zero')")
        page.wait("document.querySelector('[data-query=bad]').innerText.includes('failed')")
        # Figures are those of the run.
        latency = "document.querySelector('[data-query=tight]').children[2].innerText"
        page.wait(f"/^[0-9.]+ (ms|s|µs)$/.test({latency})")
        # The policy is changed.
        page.enter("#policy", "qos")
        page.wait("document.querySelector('#toasts').innerText.includes('qos')")
        assert running.report().policy == "qos"
        # A goal is changed.
        page.click("[data-query=tight]")
        page.wait("document.querySelector('#d-name').innerText === 'tight'")
        page.enter("#goal", "0:1, 0.25:1, 2:0")
        page.click("#goal-form button")
        page.wait("document.querySelector('#toasts').innerText.includes('another goal')")
        assert running._line.runner.observe(0).network.goals["tight"] == hg.QoS([(0, 1), (0.25, 1), (2, 0)])
        # A mistake is explained, and nothing changes.
        page.enter("#workers", "5000")
        page.wait("document.querySelector('.toast.bad')?.innerText.includes('at most 1,024')")
        # A query is removed.
        page.run("window.confirm = () => true")
        page.click("[data-query=loose]")
        page.click("#remove")
        page.wait(f"{SEEN} === 2")
        assert running.report().queries["loose"].removed
        # Keys: the next query, dark and light, the filter.
        page.press("j")
        before = page.run("document.documentElement.dataset.theme")
        page.press("t")
        assert page.run("document.documentElement.dataset.theme") != before
        page.press("/")
        assert page.run("document.activeElement.id") == "filter"
        # A phone: nothing is wider than the screen.
        page.size(390, 844, mobile=True)
        page.wait("document.documentElement.scrollWidth <= 390")
        page.picture(tmp_path / "phone.png")
        refused = [error for error in page.errors if "400 (Bad Request)" not in error]
        assert refused == []


DRAW_LATENCIES = """import('./static/charts.js').then(async ({ decades }) => {
  const holder = document.body.appendChild(document.createElement("div"));
  for (let low = 1e-4; low < 200; low *= 1.07) {
    const scales = { x: { time: false }, y: { distr: 3, range: decades } };
    const options = { width: 400, height: 168, scales, series: [{}, {}] };
    const drawn = new uPlot(options, [[1, 2], [low, low * 3]], holder);
    await 0;
    drawn.destroy();
  }
})"""
"""Charts of latencies from a tenth of a millisecond on; the axis of some had no end."""


def test_latencies_of_any_size_are_drawn(shop: tuple[Running, Page]) -> None:
    with Browser() as page:
        page.open(shop[1].address)
        page.wait(f"{SEEN} === 3")
        page.run(DRAW_LATENCIES)
        page.wait("true")
        assert page.errors == []


def test_a_page_without_the_token_can_look_and_not_change(shop: tuple[Running, Page]) -> None:
    running, served = shop
    with Browser() as page:
        page.open(f"http://127.0.0.1:{served.port}/")
        page.wait(f"{SEEN} === 3")
        page.enter("#policy", "qos")
        page.wait("document.querySelector('#token-dialog').open")
        page.enter("#token", "guessed")
        page.click("#token-dialog button[value=ok]")
        page.wait("document.querySelector('#toasts').innerText.includes('needs the token')")
        assert running.report().policy == "fcfs"


def test_a_thousand_boxes_are_drawn(wide: tuple[Running, Page]) -> None:
    _, served = wide
    with Browser() as page:
        page.open(served.address)
        page.wait(f"{SEEN} === 100")  # of five hundred; the filter finds the others
        page.enter("#filter", "q499")
        page.wait(f"{SEEN} === 1")
        page.run("document.getElementById('net').scrollIntoView()")
        inked = """(() => { const c = document.getElementById('network');
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0;
            return n > c.width * c.height / 100; })()"""
        page.wait(inked)
        assert page.errors == []
        names = "performance.getEntriesByType('resource').map((entry) => entry.name)"
        places = json.loads(page.run(f"JSON.stringify({names})"))
        own = f"127.0.0.1:{served.port}"
        assert {place.split("/")[2] for place in places} == {own}  # nothing from outside


def test_a_notebook_has_the_page_in_a_frame_to_be_looked_at(
    shop: tuple[Running, Page], tmp_path: Path
) -> None:
    """An exported notebook, served from another origin of this machine, as notebooks are."""
    running, served = shop
    html = running._repr_html_()
    assert served.token not in html  # a notebook is saved, and sent to others
    assert "<table>" in html
    head = "<!doctype html><title>notebook</title><link rel=icon href='data:,'>"
    (tmp_path / "notebook.html").write_text(head + html, encoding="utf-8")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, Browser() as page:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            page.open(f"http://localhost:{server.server_address[1]}/notebook.html")
            page.wait("document.querySelectorAll('td').length > 3 && !!document.querySelector('iframe')")
            assert served.widget is not None
            page.enter_frame(served.widget)
            page.wait(f"{SEEN} === 3")
            # What changes the run is not there: the site around the frame could place clicks.
            assert page.run("document.querySelector('#policy').offsetParent") is None
            assert page.run("document.querySelector('#add-form').offsetParent") is None
            assert page.errors == []
        finally:
            server.shutdown()


def test_other_sites_cannot_frame_the_page(shop: tuple[Running, Page]) -> None:
    served = shop[1]
    for path, allowed in (("/", False), ("/widget", True)):
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}{path}") as answer:
            policy = answer.headers["Content-Security-Policy"].partition("frame-ancestors ")[2]
        assert ("http://localhost:*" in policy.split()) is allowed
        assert "*" not in policy.split()
    # What the frame shows comes from the page itself: nobody else may fetch it.
    asked = urllib.request.Request(f"http://127.0.0.1:{served.port}/api/network")
    asked.add_header("Sec-Fetch-Site", "cross-site")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(asked)
