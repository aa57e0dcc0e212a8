"""What Headgate is measured with; next to the package, not in the wheel.

``workloads`` makes the papers' data and networks, ``experiments`` repeats their figures and measures our own
aims, ``peers`` asks the same of other systems.  ``headgate bench`` and ``headgate generate`` find this folder
in a checkout (``headgate.cli.checkout``).  It may import everything of Headgate; Headgate imports none of it.
"""
