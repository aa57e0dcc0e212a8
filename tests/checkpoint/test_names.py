"""Names that people choose become names of files in one place, and never lead out of their folder."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.checkpoint import names
from headgate.cli.control import _checkpoint_outputs

ODD = [
    "a/b",
    "..",
    ".",
    "../../x",
    ".hidden",
    "-x",
    "a%2Fb",
    "Läden & Co",
    "日本" * 60,
    "x" * 300,
    "a b",
    "nul\0",
]


@given(st.lists(st.one_of(st.text(), st.sampled_from(ODD), st.text("%/.~", max_size=6)), unique=True))
def test_safe_names_stay_in_their_folder_and_differ(given_names: list[str]) -> None:
    safe = [names.safe_name(name) for name in given_names]
    assert len(set(safe)) == len(safe)
    for name in filter(None, safe):
        assert "/" not in name
        assert "\0" not in name
        assert not name.startswith(".")
        assert len(name.encode()) <= names.LONGEST


@given(st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=names.LONGEST))
def test_plain_names_are_themselves(name: str) -> None:
    assert names.safe_name(name) == name


@given(st.text(min_size=1, max_size=12))
def test_short_names_can_be_read_back(name: str) -> None:
    assert names.original(names.safe_name(name)) == name


def test_long_names_that_begin_alike_differ() -> None:
    assert names.safe_name("x" * 300) != names.safe_name("x" * 301)


@pytest.mark.xdist_group("spark")
def test_sources_of_any_name_are_spooled_inside_the_checkpoint(tmp_path: Path, ends: Any) -> None:
    """Also history, which is named after the query."""
    checkpoint = tmp_path / "deep" / "er" / "checkpoint"
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ODD}
    app = hg.App("../../x")
    for place, name in enumerate(ODD):
        rows = app.source(name, hg.from_batches(pa.table({"a": [place, 2, 3]})))
        rows.to(name, hg.to_list(found[name]), keep="7 days")
    report = ends(lambda: app.run(hg.Spark(checkpoint=checkpoint)))
    assert [str(query.error) for query in report.queries.values() if query.error is not None] == []
    assert {name: [row["a"] for row in rows] for name, rows in found.items()} == {
        name: [place, 2, 3] for place, name in enumerate(ODD)
    }
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["checkpoint"]
    outputs = _checkpoint_outputs(checkpoint)
    assert sorted(kept["query"] for kept in outputs) == sorted(ODD)
    for kept in outputs:
        assert Path(kept["path"]).parent == checkpoint / "history"
        assert len(list(Path(kept["path"]).glob("part-*.parquet"))) == 1
