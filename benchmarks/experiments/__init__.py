"""The experiments: one module or folder each, with a function ``run(quick, console)`` that gives results."""
