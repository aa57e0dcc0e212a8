"""Forty small questions about one live stream of clicks.

A question is data, not code: a condition, the columns or aggregates it asks for, its key, its window.  So it
can be asked of Headgate (``ask``) and, from the same text, of anything else that reads Spark SQL
(the benchmarks ask Structured Streaming).  The stream is a counter with a time, as
``hg.from_rate`` and Spark's own ``rate`` source give it; expressions turn each number into a click, the same
one on either side.

    from headgate.demo import small_queries

    clicks = small_queries.clicks(app.source("clicks", hg.from_rate(5_000)))
    for question in small_queries.QUESTIONS:
        small_queries.ask(question, clicks).to(question.name, hg.to_console(), qos=question.qos)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headgate.api.streams import Stream
from headgate.graph.qos import QoS
from headgate.graph.windows import Window, session, sliding, tumbling

TIGHT = QoS([(0, 1), (1, 1), (3, 0)])
LOOSE = QoS([(0, 1), (5, 1), (30, 0)])

RANDOM = (
    "value",
    "timestamp AS ts",
    # Two linear congruences; reduced first, so that no product leaves BIGINT however long the stream runs.
    "(value % 1000003) * 48271 % 2147483647 AS h",
    "(value % 1000033) * 69621 % 2147483647 AS g",
)
CLICK = (
    "value",
    "ts",
    # Products of two even choices: a few users and items are met often and most of them rarely.
    "(h DIV 100 % 100) * (h % 100) AS user",
    "1 + (g % 40) * (g DIV 40 % 25) AS item",
    "(g DIV 11) % 12 AS category",
    "g % 20000 / 100D AS price",
    "CASE WHEN h DIV 13 % 10 < 7 THEN 'view' WHEN h DIV 13 % 10 < 9 THEN 'cart' ELSE 'buy' END AS kind",
)
STEPS = (RANDOM, CLICK)
"""Selections that turn (value, timestamp) into a click, one after the other."""


@dataclass(frozen=True)
class Question:
    """One continuous query as data.

    Without ``aggregates`` it is an alert: the rows of ``where``, as ``columns``.  With aggregates and no
    ``window`` they run: every row brings its key's new values.  With one, they come when the window closes;
    ``top`` keeps that many of them, by ``order``.
    """

    name: str
    asks: str
    where: str = "TRUE"
    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()
    window: str | None = None
    """tumbling, sliding or session."""
    size: float = 0
    """Seconds of the window, or of the pause that ends a session.

    Clicks exactly such a pause apart are two sessions here and one in Spark: no whole seconds for pauses.
    """
    every: int = 0
    top: int = 0
    order: str = ""
    tight: bool = False

    @property
    def qos(self) -> QoS:
        return TIGHT if self.tight else LOOSE

    @property
    def timed(self) -> Question:
        """The same question, whose answers also carry a column ``ts``: the newest click in them."""
        if self.window is None:
            return self
        return replace(self, aggregates=(*self.aggregates, "max(ts) AS ts"))


def clicks(numbers: Stream) -> Stream:
    """Numbers and times as clicks: value, ts, user, item, category, price, kind."""
    for step in STEPS:
        numbers = numbers.select(*step)
    return numbers


def ask(question: Question, clicks: Stream) -> Stream:
    """A question as a stream of answers."""
    rows = clicks if question.where == "TRUE" else clicks.filter(question.where)
    if not question.aggregates:
        return rows.select(*question.columns)
    window = _window(question)
    if window is None:
        running = rows.select(*question.columns).key_by(*question.key).running(*question.aggregates)
        return running.select(*question.key, *(_alias(each) for each in question.aggregates), "ts")
    windowed = rows.key_by(*question.key).window(window) if question.key else rows.window(window)
    answers = windowed.agg(*question.aggregates)
    if question.top:
        return answers.top(question.top, by=question.order, every=question.every, on="window_start")
    return answers


def _window(question: Question) -> Window | None:
    if question.window is None:
        return None
    if question.window == "tumbling":
        return tumbling(question.size, on="ts")
    if question.window == "sliding":
        return sliding(question.size, every=question.every, on="ts")
    return session(question.size, on="ts")


def _alias(expression: str) -> str:
    return expression.rsplit(" AS ", 1)[1]


def _alert(name: str, asks: str, where: str, *extra: str, tight: bool = True) -> Question:
    return Question(name, asks, where, ("user", "item", "price", *extra, "ts"), tight=tight)


def _sum(
    name: str, asks: str, where: str, key: str, *aggregates: str, needs: str = "price", tight: bool = False
) -> Question:
    columns = tuple(dict.fromkeys((key, needs, "ts")))
    return Question(name, asks, where, columns, (key,), aggregates, tight=tight)


def _count(
    name: str,
    asks: str,
    where: str,
    key: str,
    seconds: int,
    *aggregates: str,
    every: int = 0,
    tight: bool = False,
) -> Question:
    keys = (key,) if key else ()
    kind = "sliding" if every else "tumbling"
    return Question(name, asks, where, (), keys, aggregates, kind, seconds, every or seconds, tight=tight)


def _top(name: str, asks: str, where: str, key: str, seconds: int, n: int, tight: bool = False) -> Question:
    order = f"n DESC, {key}"
    aggregates = ("count(*) AS n",)
    return Question(
        name, asks, where, (), (key,), aggregates, "tumbling", seconds, seconds, n, order, tight=tight
    )


def _session(name: str, asks: str, where: str, pause: float, *aggregates: str) -> Question:
    return Question(name, asks, where, (), ("user",), aggregates, "session", pause)


QUESTIONS: tuple[Question, ...] = (
    _alert("big-purchase", "a purchase over 190", "kind = 'buy' AND price > 190"),
    _alert("big-cart", "more than 198 in one go into a cart", "kind = 'cart' AND price > 198"),
    _alert("free-item", "something sold for nearly nothing", "kind = 'buy' AND price < 1"),
    _alert("watched-item", "a user buys item 77", "item = 77 AND kind = 'buy'"),
    _alert("watched-user", "user 1001 does anything", "user = 1001", "kind"),
    _alert("anonymous-buys", "a purchase without a user", "user = 0 AND kind = 'buy'"),
    _alert("jewels", "jewels looked at", "category = 4 AND price > 180", "kind"),
    _alert("odd-price", "a price that ends in .99", "CAST(price * 100 AS BIGINT) % 100 = 99"),
    _alert("new-line", "the new line, items 900 and above", "item >= 900", "kind", tight=False),
    _alert("tax", "purchases with tax", "kind = 'buy'", "round(price * 1.19D, 2) AS gross", tight=False),
    _alert("rebate", "carts that earn a rebate", "kind = 'cart' AND price BETWEEN 100 AND 110", tight=False),
    _alert("music-or-books", "music and books sold", "category IN (1, 7) AND kind = 'buy'", tight=False),
    _sum("spent-by-user", "what a user has spent", "kind = 'buy'", "user", "sum(price) AS spent", tight=True),
    _sum("bought-by-user", "how often a user has bought", "kind = 'buy'", "user", "count(*) AS n"),
    _sum("sold-by-item", "what an item has brought", "kind = 'buy'", "item", "sum(price) AS revenue"),
    _sum("carts-by-item", "how often an item is in a cart", "kind = 'cart'", "item", "count(*) AS n"),
    _sum("dearest", "the dearest sale of a category", "kind = 'buy'", "category", "max(price) AS dearest"),
    _sum("cheapest", "the cheapest sale of a category", "kind = 'buy'", "category", "min(price) AS cheapest"),
    _sum("revenue", "a category's revenue and sales", "kind = 'buy'", "category", "sum(price) AS revenue",
         "count(*) AS n", tight=True),
    _sum("average-cart", "an average cart", "kind = 'cart'", "category", "avg(price) AS average"),
    _count("clicks-per-second", "clicks, every second", "TRUE", "", 1, "count(*) AS n", tight=True),
    _count("sales-per-second", "sales, every second", "kind = 'buy'", "", 1, "count(*) AS n",
           "sum(price) AS revenue", tight=True),
    _count("kinds", "clicks by kind, every 2 seconds", "TRUE", "kind", 2, "count(*) AS n", tight=True),
    _count("categories", "clicks by category, every 2 seconds", "TRUE", "category", 2, "count(*) AS n"),
    _count("category-revenue", "revenue by category, every 5 seconds", "kind = 'buy'", "category", 5,
           "sum(price) AS revenue", "avg(price) AS average"),
    _count("carts", "carts by category, every 5 seconds", "kind = 'cart'", "category", 5, "count(*) AS n"),
    _count("dear-views", "views of dear items, every 5 seconds", "kind = 'view' AND price > 150", "item", 5,
           "count(*) AS n"),
    _count("busy-users", "clicks by user, every 10 seconds", "user > 0", "user", 10, "count(*) AS n"),
    _count("spread", "lowest and highest price by category, every 10 seconds", "kind = 'buy'", "category", 10,
           "min(price) AS low", "max(price) AS high"),
    _count("conversion", "purchases per click by category, every 10 seconds", "TRUE", "category", 10,
           "avg(CASE WHEN kind = 'buy' THEN 1D ELSE 0D END) AS bought"),
    _count("last-10-seconds", "revenue of the last 10 seconds, every 2", "kind = 'buy'", "", 10,
           "sum(price) AS revenue", every=2, tight=True),
    _count("last-20-seconds", "sales of the last 20 seconds, every 5", "kind = 'buy'", "category", 20,
           "count(*) AS n", every=5),
    _top("top-items", "the 5 items most seen, every 2 seconds", "kind = 'view'", "item", 2, 5, tight=True),
    _top("top-sellers", "the 5 items most bought, every 5 seconds", "kind = 'buy'", "item", 5, 5),
    _top("top-carts", "the 5 items most often in carts, every 5 seconds", "kind = 'cart'", "item", 5, 5),
    _top("top-users", "the 10 busiest users, every 10 seconds", "user > 0", "user", 10, 10),
    _top("top-categories", "the 3 best categories, every 5 seconds", "kind = 'buy'", "category", 5, 3),
    _session("visits", "clicks of a visit, which 3.5 quiet seconds end", "user > 0 AND user % 10 = 3", 3.5,
             "count(*) AS n", "sum(price) AS seen"),
    _session("shopping", "what a shopping tour of a user costs", "user > 0 AND kind = 'buy'", 2.5,
             "count(*) AS n", "sum(price) AS spent"),
    _session("window-shopping", "tours of dear views only", "user > 0 AND kind = 'view' AND price > 180", 2.5,
             "count(*) AS n", "max(price) AS dearest"),
)  # fmt: skip
"""Alerts, running sums, counts by window, top lists and sessions."""
