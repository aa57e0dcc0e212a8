"""What people write who know other SQL, and what to write here."""

from __future__ import annotations

import re

_ADVICE = {
    r"\b(tumble|hop|tumbling|hopping)\b\s*\(|\bwindow\s+(tumbling|hopping)\b|\bemit\s+changes\b": (
        "Windows are groups: GROUP BY window(ts, '1 minute'), or window(ts, '10 minutes', '1 minute') for "
        "those that overlap."
    ),
    r"\bsession\s*\(": "Sessions are groups: GROUP BY user, session_window(ts, '5 minutes').",
    r"\bwindow\s*\(\s*[\w.]+\s*,\s*\d": "A length is a text in quotes: window(ts, '5 minutes').",
    r"^(?!.*\bgroup\s+by\b).*\bwindow\s*\(": (
        "window() belongs into GROUP BY; its bounds are window.start and window.end."
    ),
    r"\bselect\s+top\s+\d": "Write LIMIT n for the first rows; with a window, ORDER BY … LIMIT n.",
    r"&&": "Write AND for &&.",
    r"\*\s+form\b|\bselect\b(?!.*\bfrom\b)": "After the columns comes FROM and a source or a view.",
    r"^\s*(insert|update|delete|merge|truncate)\b|^\s*create\s+table\b": (
        "Where the results of a SELECT go is said beside it: .to(name, sink), in a file CREATE QUERY."
    ),
    r"\bdistinct\s+on\b": (
        "For the first row of each key, put ROW_NUMBER() OVER (PARTITION BY key ORDER BY ts) AS n into a "
        "query in FROM, and write WHERE n <= 1 around it."
    ),
    r"\bwhere\b[^()]*\b(count|sum|avg|min|max)\s*\(": (
        "Conditions on aggregates come after GROUP BY: HAVING count(*) > 3."
    ),
    r"\b(getdate|sysdate)\b": "There is no present moment in a stream; compare times of the rows.",
    r"\bisnull\s*\([^()]*,": "Write coalesce(a, 0) for isnull(a, 0).",
    r"\bto_char\s*\(": "Write date_format(ts, 'yyyy-MM-dd') for to_char.",
    r"'\s*\+|\+\s*'": "Texts are joined with || or concat(a, b).",
    r"\b(rank|dense_rank)\s*\(": "Write ROW_NUMBER(), with WHERE n <= 10 around the query.",
}
_PATTERNS = [(re.compile(pattern, re.IGNORECASE | re.DOTALL), advice) for pattern, advice in _ADVICE.items()]


def advice(text: str) -> str:
    """What to write in place of a query that was refused; nothing if none of it is known from elsewhere."""
    return next((f" {advice}" for pattern, advice in _PATTERNS if pattern.search(text)), "")
