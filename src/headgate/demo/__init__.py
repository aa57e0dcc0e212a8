"""The shop that ``headgate demo`` runs and ``headgate calibrate`` measures: its rows, queries and broker.

The rows are TPCx-BB's (``tpcx_bb``), made of a live counter (``live``).  The queries are the five of
``examples/tpcx_bb`` and forty small ones (``small_queries``).
"""
