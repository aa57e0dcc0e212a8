"""Java, which Spark runs on: where it is, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from headgate.errors import RunError

JAVA = 17
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options that suit a Java on this machine's few cores which runs for minutes: it compiles little."""
_GET_JAVA = (
    f"Spark needs Java {JAVA} or newer: `make java` installs it, or install openjdk-{JAVA}-jre-headless "
    "yourself and, if there are several, point JAVA_HOME at it. Or run with engine='threads'."
)


def find_java() -> str:
    """Where Java is; an error says what to do if it is nowhere."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, where there is no Java" if home else "there is no Java here"
        raise RunError(f"The Spark engine cannot start: {where}. {_GET_JAVA}")
    return java


def require_java() -> None:
    """Say what is missing before Spark fails in its own words."""
    java = find_java()
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < JAVA:
        raise RunError(f"The Spark engine cannot start: {java} is Java {found[1]}. {_GET_JAVA}")
