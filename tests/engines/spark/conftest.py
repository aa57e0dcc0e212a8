"""After tests that let calls of sinks fail: sink, fault, how often, and differences in the output."""

from __future__ import annotations

import pytest

import outside


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in outside.summary():
        terminalreporter.write_line(line)
