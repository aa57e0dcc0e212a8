"""NEXMark's queries as one application, each from its file of SQL.

    headgate generate nexmark data/nexmark --events 1000000
    headgate run examples/nexmark/app.py

NEXMARK_DATA names another folder, NEXMARK_OUT where results go.  q6 and q12 are left out: their files say
why they cannot be continuous queries here.
"""

from __future__ import annotations

import os
from pathlib import Path

import headgate as hg

HERE = Path(__file__).parent
QUERIES = [f"q{number}" for number in range(23)]
REFUSED = ("q6", "q12")


def text(query: str) -> str:
    """The SELECT of a query."""
    return (HERE / f"{query}.sql").read_text(encoding="utf-8")


def build() -> hg.App:
    """The application over files."""
    data, out = (
        Path(os.environ.get("NEXMARK_DATA", "data/nexmark")),
        os.environ.get("NEXMARK_OUT", "out/nexmark"),
    )
    app = hg.App("nexmark")
    for table in ("person", "auction", "bid", "side_input"):
        app.source(table, hg.from_files(data / table))
    for query in QUERIES:
        if query not in REFUSED:
            app.sql(text(query)).to(query, hg.to_parquet(f"{out}/{query}", overwrite=True))
    return app
