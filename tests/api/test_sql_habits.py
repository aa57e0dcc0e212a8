"""SQL as other systems have it is answered with what to write here."""

from __future__ import annotations

import pytest

import headgate as hg
from headgate.errors import PipelineError

TEXTS = {
    "SELECT * FROM sale": "Did you mean 'sales'",
    "SELECT itme FROM sales": "Did you mean 'item'",
    "SELECT item, price, count(*) FROM sales GROUP BY item": r"max\(price\)",
    "SELECT * FROM sales ORDER BY price": "ORDER BY … LIMIT n",
    "SELECT * FROM sales WHERE count(*) > 3": "HAVING count",
    "SELECT count(*) FROM sales GROUP BY window(ts, 5 minutes)": r"window\(ts, '5 minutes'\)",
    "SELECT count(*) FROM sales GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)": r"BY window\(ts, '1 minute'\)",
    "SELECT count(*) FROM TABLE(TUMBLE(TABLE sales, DESCRIPTOR(ts), INTERVAL '1' MINUTE))": "Windows are",
    "SELECT count(*) FROM sales WINDOW TUMBLING (SIZE 1 MINUTE) GROUP BY item EMIT CHANGES": "Windows are",
    "SELECT count(*) FROM sales GROUP BY session(ts, '5 minutes')": "session_window",
    "SELECT window(ts, '1 minute') AS w, item FROM sales": "belongs into GROUP BY",
    "INSERT INTO out SELECT * FROM sales": r"\.to\(name, sink\)",
    "UPDATE sales SET price = 1": r"\.to\(name, sink\)",
    "SELECT TOP 10 * FROM sales": "LIMIT n",
    "SELECT item FROM sales WHERE price == 1 && item == 2": "AND for &&",
    "SELECT * FORM sales": "comes FROM",
    "SELECT DISTINCT ON (item) * FROM sales": "WHERE n <= 1",
    "SELECT rank() OVER (PARTITION BY item ORDER BY price) AS r FROM sales": r"ROW_NUMBER\(\), with WHERE",
    "SELECT getdate() FROM sales": "no present moment",
    "SELECT isnull(item, 0) AS i FROM sales": r"coalesce\(a, 0\)",
    "SELECT to_char(ts, 'YYYY') FROM sales": "date_format",
    "SELECT 'a' + 'b' AS x FROM sales": r"\|\|",
    "SELECT * FROM sales; SELECT * FROM sales": "One SELECT at a time",
    "SELECT * FROM sales a JOIN sales b ON a.item > b.item": r"ON a\.id = b\.id",
    "SELECT item FROM sales EXCEPT SELECT item FROM sales": "UNION ALL",
    "SELECT * FROM sales WHERE price > (SELECT avg(price) FROM sales)": r"IN \(SELECT",
}


def test_a_query_that_is_refused_says_what_to_write() -> None:
    app = hg.App("habits")
    numbers = app.source("numbers", hg.from_rate(1))
    app.view("sales", numbers.select("value AS price", "value % 3 AS item", "timestamp AS ts"))
    for text, words in TEXTS.items():
        with pytest.raises(PipelineError, match=words):
            app.sql(text)
    assert app.sql("SELECT DISTINCT item FROM sales").schema.names == ["item"]
