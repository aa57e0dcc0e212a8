"""Workloads of the papers, generated: data and networks to run, test and measure with.

``tpcx_bb`` writes the web clickstreams and store sales of the TPCx-BB streaming queries (ordered processing,
section 7); ``aurora`` makes the artificial networks of Aurora's experiments (section 5.1); ``requests`` makes
the finite queries that task scheduling is measured with; ``many_queries`` makes any number of small ones.
"""
