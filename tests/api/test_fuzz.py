"""Whatever is given to Headgate, the answer is a result or an error that explains itself.

``make fuzz-inputs`` tries as many inputs as one likes; ``scripts/fuzz.py --replay TARGET SEED`` shows one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzing import TARGETS, try_one

INPUTS = 400


@pytest.mark.parametrize("target", TARGETS)
def test_any_input_has_a_result_or_an_error_that_explains_itself(target: str, tmp_path: Path) -> None:
    wrong = {}
    for seed in range(INPUTS):
        how, why = try_one(target, seed, tmp_path)
        if how == "wrong":
            wrong[seed] = why
    assert wrong == {}


def test_an_error_that_is_not_ours_counts_as_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setitem(TARGETS, "broken", broken)
    assert try_one("broken", 0, tmp_path) == ("wrong", "KeyError: 'x'")
