"""The experiments of ordered processing, on threads and simulated on sixteen workers."""
