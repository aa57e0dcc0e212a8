"""TPCx-BB's tables, and the functions of its five streaming queries (ordered processing, table 1)."""
