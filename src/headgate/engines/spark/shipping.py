"""What workers need and may not have: the pipeline with the user's functions, and this package."""

from __future__ import annotations

import atexit
import hashlib
import io
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

import headgate.errors
from headgate.errors import PipelineError
from headgate.sql.udfs import UDFS

_PACKAGE = Path(headgate.errors.__file__).parent
_INSTALLED = tuple(
    f"{place}/"
    for place in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        _PACKAGE,
    )
)
"""Folders of Python's own modules, of installed ones and of ours.  Every run asks this of every module."""
_shipped: WeakSet[Any] = WeakSet()
"""Sessions whose executors have the package."""


def pickled(pipeline: Any) -> bytes:
    """The pipeline as bytes; functions of modules that a worker cannot import go along as code."""
    from pyspark import cloudpickle

    with _by_value(cloudpickle):
        try:
            # First the user's functions: expressions are compiled from their text where they arrive.
            data: bytes = cloudpickle.dumps((tuple(UDFS.values()), pipeline))
        except Exception as error:
            raise PipelineError(
                f"The pipeline cannot be sent to Spark's workers: {type(error).__name__}: {error}. A "
                "function of yours refers to something that cannot be copied (a lock, a connection, an open "
                "file); make it inside the function."
            ) from error
    return data


@contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    modules = [module for module in list(sys.modules.values()) if _is_users(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: ModuleType) -> bool:
    """Neither installed nor Python's own nor ours: a file of the user's."""
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not file or module.__name__ == "__main__":
        return False
    return not file.startswith(_INSTALLED)


def ship_package(session: Any) -> None:
    """Send this package to executors, which need not have it installed; once per session.

    The archive stays until this process ends, as executors that start later fetch it then.
    """
    if session in _shipped:
        return
    folder = Path(tempfile.mkdtemp(prefix="headgate-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = _archive()
    # Named by what is in it: a session that has this version takes no other under the same name.
    archive = folder / f"headgate-{hashlib.sha256(data).hexdigest()[:12]}.zip"
    archive.write_bytes(data)
    session.addArtifacts(str(archive), pyfile=True)
    _shipped.add(session)


def _archive() -> bytes:
    """All modules of the package, the same bytes for the same modules."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(_PACKAGE.rglob("*.py")):
            name = zipfile.ZipInfo(path.relative_to(_PACKAGE.parent).as_posix())
            name.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(name, path.read_bytes())
    return buffer.getvalue()
