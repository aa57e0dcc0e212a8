"""Workloads of the papers, generated: data and networks to run, test and measure with.

``tpcx_bb`` makes the web clickstreams and store sales of the TPCx-BB streaming queries (ordered
processing, section 7); ``aurora`` makes the artificial networks of Aurora's experiments (section 5.1).
This package rests on the public surface only; nothing else rests on it.
"""
