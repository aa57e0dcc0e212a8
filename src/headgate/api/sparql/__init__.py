"""SPARQL as streams: a question over triples becomes a plan of scans, joins and sorts, each of them a box.

rdflib parses the text (``algebra``); the order of joins follows from statistics of the data (``planning``);
``building`` puts the boxes into an application.
"""

from headgate.api.sparql.building import sparql

__all__ = ["sparql"]
