"""As many small questions of one shape as a benchmark wants, over the clicks of the demo's shop."""

from __future__ import annotations

from headgate.demo.small_queries import Question

RESTS = 50


def cut(number: int) -> tuple[int, int]:
    """What a generated question looks at: items with this rest modulo ``RESTS``, dearer than that."""
    return number % RESTS, 50 + number // RESTS


def many(n: int, *, keyed: bool) -> list[Question]:
    """``n`` different small questions of one shape: alerts, or sums by user that run.

    Each looks at about 1 in 100 clicks, so that work grows with the questions and not with their results.
    """
    made = []
    for number in range(n):
        rest, limit = cut(number)
        where = f"item % {RESTS} = {rest} AND price > {limit}"
        name = f"{'sum' if keyed else 'alert'}-{number:03d}"
        if keyed:
            aggregates = ("sum(price) AS spent", "count(*) AS n")
            made.append(
                Question(name, f"spent on {where}", where, ("user", "price", "ts"), ("user",), aggregates)
            )
        else:
            columns = ("user", "item", f"price * {number + 1} AS worth", "ts")
            made.append(Question(name, f"clicks with {where}", where, columns))
    return made
