"""The locality-aware scheduler (J.UCS 2015) and its baseline NLS: queues per core and per cache group."""
