"""What sources remember, in the log: what they have learned since the record before, not all of it again.

A folder that is followed for a year has a hundred thousand files.  A record that admits the next one names
that one.
"""

from __future__ import annotations

from typing import Any


def merged(known: Any, news: Any) -> Any:
    """What is known once the news are in: a table keeps its other entries, anything else is replaced.

    Tables in ``known`` are changed in place, as they may be large; ``news`` may become part of the result.
    """
    if not isinstance(known, dict) or not isinstance(news, dict):
        return news
    for key, value in news.items():
        known[key] = merged(known[key], value) if key in known else value
    return known
