"""Bobox's and LAS's experiments: caches, memory nodes, packet sizes."""
