"""Recordings of runs, and what is computed from them: replays, advice, admission.

``recorder`` is an observer of a run that writes a file of ``format``.  ``model`` says what a recorded box
costs and makes of its tuples; ``stand_ins`` are operators and sources that do as recorded.  ``replaying``
runs the real core and a real policy over them in the simulated engine; ``advising`` searches by replays, and
``admitting`` asks whether one more query fits into a run that goes on.
"""
