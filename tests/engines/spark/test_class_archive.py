"""Java's class archive: made once for a Java and a Spark, used by local sessions, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.engines.spark import class_archive
from headgate.engines.spark.class_archive import archive, java_options


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of this Java and this Spark, as far as its name says."""
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))
    found = archive()
    assert java_options() == ""
    found.parent.mkdir(parents=True)
    found.write_bytes(b"no archive")
    return found


def test_an_archive_is_used_where_it_is(made: Path) -> None:
    assert f"-XX:SharedArchiveFile={made} " in java_options()


def test_another_spark_has_another_archive(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive.maven, "spark_version", lambda: "0.1")
    assert archive() != made
    assert java_options() == ""


def test_what_is_there_is_not_made_again(made: Path) -> None:
    assert class_archive.make() == made
    assert made.read_bytes() == b"no archive"


def test_a_folder_that_spark_would_split_at_its_space_is_not_named(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = made.parent / "with space.jsa"
    spaced.write_bytes(b"")
    monkeypatch.setattr(class_archive, "archive", lambda: spaced)
    assert java_options() == ""
