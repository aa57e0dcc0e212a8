"""Folders of parts: how a part gets its name.

A part is written under a hidden name and gets its final one when it is complete.  The final name is a hard
link, since that never replaces a file, as a rename would.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from headgate.checkpoint.disk import sync_folders
from headgate.errors import SinkError

_NUMBER = re.compile(r"part-(\d+)")
_DIGITS = 6


def part_name(number: int, rest: str = "") -> str:
    """The name of a part.  ``number`` orders parts by when their writer began, ``rest`` those of a writer."""
    return f"part-{number:0{_DIGITS}d}{rest}.parquet"


def next_number(names: Iterable[str]) -> int:
    """A number whose parts sort behind all parts of the folder, also those of other programs."""
    found = [match[1] for name in names if (match := _NUMBER.match(name))]
    # Names are compared from the left: 'part-00012-…' is before 'part-000121…'.
    return max((int(digits.ljust(_DIGITS, "0")[:_DIGITS]) for digits in found), default=-1) + 1


def give_name(written: str | Path, final: str | Path) -> bool:
    """Give a complete file its final name too; false if another file has that name."""
    try:
        os.link(written, final)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:
        # A file system without hard links, or a file of another user, as an executor's may be.
        if os.path.lexists(final):
            return False
        os.rename(written, final)
    return True


def publish(files: Sequence[Sequence[str]], *, durable: bool) -> None:
    """Give committed files (written name, final name) their final names.

    May be repeated after a crash: a file that has its name already is left alone.  ``durable``: when this
    returns, a power cut takes no name away, so the log may say that the files are published.
    """
    for written, final in files:
        try:
            # The same content: a crash came between the two names, and the folder may have been copied since.
            if not give_name(written, final) and not filecmp.cmp(written, final, shallow=False):
                raise SinkError(
                    f"'{final}' is there already, and Headgate did not write it; it is left as it is. Move "
                    "it away and start again: the part that has this name appears then."
                )
        except FileNotFoundError:
            if not os.path.exists(final):
                raise SinkError(
                    f"'{final}' was committed, but neither it nor '{written}' is there any more; another "
                    "program removed it. Restore the folder, or start with a new checkpoint."
                ) from None
    if durable:
        sync_folders(os.path.dirname(final) for _, final in files)
    # Not earlier: a power cut could lose the new name, and without the old one the rows would be lost.
    for written, _ in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(written)
