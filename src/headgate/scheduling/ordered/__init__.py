"""The heuristics of ordered processing (Prasaad et al.): QST, LP, ET and CT."""
