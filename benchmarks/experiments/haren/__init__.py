"""Haren's experiment: policies that reschedule, each at the goal that it serves."""
