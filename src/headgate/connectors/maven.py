"""Java packages from the public repository of Maven, fetched once and kept.

Spark's connectors and the broker of the demo are Java packages.  Spark ships Ivy, which resolves a package
with all that it needs, so nothing but Java and pyspark has to be there.  What was fetched stays in a cache
(``HEADGATE_CACHE``, or the user's cache folder) and is used without the network from then on.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr

from headgate.errors import HeadgateError

SCALA = "2.13"
_NO_ANSWER = re.compile(r"ERROR: \w*Handler: |SERVER ERROR")
_MISSING = re.compile(r"^\W*(\S+#\S+;\S+): not found", re.MULTILINE)
_MINUTES = 10
FALLBACK = "HEADGATE_KAFKA_FALLBACK"


class PackageError(HeadgateError):
    """A Java package that can be neither found in the cache nor fetched."""


@dataclass(frozen=True)
class Choice:
    """Packages that are used together, as ``group:name:version``; what they need comes with them.

    ``instead`` replaces the version of something that they need (``group:name`` to version); packages
    of the groups ``without`` are left out, because Spark has them already.
    """

    packages: tuple[str, ...]
    instead: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of its folder in the cache."""
        named = [package.split(":", 1)[1].replace(":", "-") for package in self.packages]
        named += [f"{module.split(':')[1]}-{version}" for module, version in self.instead.items()]
        return "+".join(named)

    def __str__(self) -> str:
        text = " and ".join(self.packages)
        return text + "".join(f" with {module}:{version}" for module, version in self.instead.items())


def _known() -> dict[str, tuple[Choice, ...]]:
    connector = f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}"
    tokens = f"org.apache.spark:spark-token-provider-kafka-0-10_{SCALA}"
    spark_has = (
        "org.apache.hadoop",
        "org.scala-lang",
        "org.slf4j",
        "org.lz4",
        "at.yawk.lz4",
        "org.xerial.snappy",
    )
    choices = [Choice((f"{connector}:{spark_version()}",), without=spark_has)]
    # A mirror may lag behind Spark's releases.  Another version may fail in ways that show only under load or
    # with security on, so it is used only where the user names it.
    fallback = os.environ.get(FALLBACK)
    if fallback:
        version, _, of_tokens = fallback.partition(",")
        instead = {tokens: of_tokens} if of_tokens else {}
        choices.append(Choice((f"{connector}:{version}",), instead, without=spark_has))
    return {
        "spark-kafka": tuple(choices),
        "kafka-broker": (
            Choice(
                (f"org.apache.kafka:kafka_{SCALA}:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
            ),
        ),
    }


def jars(name: str) -> list[str]:
    """Paths of the jars of "spark-kafka" (Spark's connector), "kafka-broker", or any "group:name:version".

    The connector's list is what ``spark.jars`` takes, joined by commas.  The connector and its token provider
    have the version of the installed Spark.  Where the repository has none of that version, those that
    ``HEADGATE_KAFKA_FALLBACK`` names (``4.2.0``, or ``4.2.0,4.0.0`` with another token provider) are taken
    with a warning; without it that is an error.
    """
    choices = _known().get(name)
    if choices is None:
        if not re.fullmatch(r"[\w.-]+:[\w.-]+:[\w.-]+", name):
            raise PackageError(
                f"'{name}' is no package that Headgate knows ({', '.join(_known())}); "
                "name another one as group:name:version."
            )
        choices = (Choice((name,)),)
    for choice in choices:
        if (cache() / choice.folder).is_dir():
            return _listed(choices, choice)
    problems = []
    for choice in choices:
        problem = _fetch(choice)
        if problem is None:
            return _listed(choices, choice)
        problems.append(f"{choice}: {problem}")
    other = f" or name another version of it in {FALLBACK};" if name == "spark-kafka" else ""
    raise PackageError(
        f"The Java package '{name}' could not be fetched: {'; '.join(problems)}. Check its name and version;"
        f"{other} or put its jars and those that it needs into '{cache() / choices[0].folder}'."
    )


def cache() -> Path:
    """The folder of everything that was fetched."""
    given = os.environ.get("HEADGATE_CACHE")
    if given:
        return Path(given).absolute() / "jars"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate" / "jars"


def spark_version() -> str:
    """The version of the installed pyspark."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise PackageError("pyspark is not installed; pip install 'pyspark>=4.3,<4.4'.") from None


def spark_home() -> Path:
    """The folder of the installed Spark, with ``bin`` and ``jars``."""
    spec = importlib.util.find_spec("pyspark")
    folders = [os.environ.get("SPARK_HOME"), os.path.dirname(spec.origin) if spec and spec.origin else None]
    for folder in folders:
        if folder and (Path(folder) / "jars").is_dir():
            return Path(folder)
    raise PackageError(
        "There is no Spark with its jars here, only a client at most; pip install 'pyspark>=4.3,<4.4'."
    )


def java() -> str:
    """The ``java`` command: of JAVA_HOME, or the one on the path."""
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not command or not os.access(command, os.X_OK):
        raise PackageError(
            "There is no Java; Spark needs version 17 or later: apt install openjdk-17-jre-headless."
        )
    return command


def _listed(choices: tuple[Choice, ...], taken: Choice) -> list[str]:
    if taken is not choices[0]:
        warnings.warn(
            f"The repository had no {choices[0]}; {taken} is used instead. To ask for it again, remove "
            f"'{cache() / taken.folder}'.",
            stacklevel=3,
        )
    return sorted(str(jar) for jar in (cache() / taken.folder).glob("*.jar"))


def _fetch(choice: Choice) -> str | None:
    """Fill the choice's folder in the cache, all of it or nothing; what went wrong, or None."""
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache(), prefix=".fetching-") as folder:
        work = Path(folder)
        (work / "ivy.xml").write_text(_ivy(choice), encoding="utf-8")
        command = [java(), f"-Divy.default.ivy.user.dir={work / 'user'}", "-cp", f"{spark_home() / 'jars'}/*"]
        command += ["org.apache.ivy.Main", "-verbose", "-m2compatible", "-ivy", str(work / "ivy.xml")]
        command += [
            "-cache",
            str(work / "cache"),
            "-types",
            "jar",
            "bundle",
            "-confs",
            "default",
            "-retrieve",
        ]
        command += [str(work / "jars" / "[artifact]-[revision](-[classifier]).[ext]")]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60 * _MINUTES
            )
        except subprocess.TimeoutExpired:
            raise _unreachable(choice, f"has not answered within {_MINUTES} minutes") from None
        said = done.stdout + done.stderr
        if done.returncode or not list((work / "jars").glob("*.jar")):
            if _NO_ANSWER.search(said):
                # Not a reason to take another version: this one may well be there.
                raise _unreachable(choice, "does not answer")
            missing = dict.fromkeys(re.sub("[#;]", ":", found) for found in _MISSING.findall(said))
            return f"not there: {', '.join(missing)}" if missing else said.strip()[-500:]
        try:
            os.rename(work / "jars", cache() / choice.folder)
        except OSError:
            # Another process fetched the same meanwhile; a package's version never changes.
            if not (cache() / choice.folder).is_dir():
                raise
    return None


def _unreachable(choice: Choice, why: str) -> PackageError:
    return PackageError(
        f"The repository of Java packages {why}, so {choice} could not be fetched. Check the network once; "
        f"what was fetched is kept in '{cache()}' and serves all later runs."
    )


def _ivy(choice: Choice) -> str:
    lines = []
    for package in choice.packages:
        group, name, version = map(quoteattr, package.split(":"))
        lines.append(f'<dependency org={group} name={name} rev={version} conf="default->default"/>')
    lines += [f'<exclude org={quoteattr(group)} matcher="exact"/>' for group in choice.without]
    for module, version in choice.instead.items():
        group, name = map(quoteattr, module.split(":"))
        lines.append(f'<override org={group} module={name} matcher="exact" rev={quoteattr(version)}/>')
    return (
        '<ivy-module version="2.0"><info organisation="headgate" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )
