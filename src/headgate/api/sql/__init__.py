"""Continuous SQL: a SELECT in Spark's dialect becomes boxes, by the methods that streams have anyway.

``relation`` has what a FROM clause gives: a stream and the names of its columns.  ``sharing`` makes each box
once, so that equal parts of several queries are one box.  ``select`` reads one SELECT clause by clause, with
``joins``, ``grouping`` and ``over`` for those that need a state.  ``statements`` reads whole applications.
A text is checked when it is built; what cannot be a continuous query is refused with the reason and the
nearest form that can.
"""
