"""Writes the table of PySpark programs: which are taken over, and if Structured Streaming gives the same.

``python scripts/programs_table.py`` runs the programs of ``tests/support/pyspark_programs.py`` both ways and
writes the table into ``docs/from-pyspark.md``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests/support")]
BEGIN, END = "<!-- programs: written by scripts/programs_table.py -->\n", "<!-- end of programs -->\n"


def table() -> str:
    import pyspark

    import headgate as hg
    import pyspark_programs as programs
    from headgate.engines.spark.session import open_session
    from headgate.errors import PipelineError
    from pyspark_compared import compare

    session = open_session("local[2]", "programs", {}, list).newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    lines = [
        f"Spark {pyspark.__version__}; *rows* are compared as a bag, without those that only close windows.",
        "",
        "| program | output mode | rows | as Structured Streaming |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "in"
        programs.write_input(folder)
        _, verdicts = compare(session, folder, [*programs.APPEND, *programs.UPDATE])
        for verdict in verdicts:
            mode = "update" if verdict.program in programs.UPDATE else "append"
            different = len(verdict.only_ours) + len(verdict.only_theirs)
            same = f"**{different} different**" if different else "equal"
            lines.append(f"| {verdict.program.replace('_', ' ')} | {mode} | {verdict.rows} | {same} |")
        for name, program in programs.REFUSED.items():
            try:
                hg.from_spark(program(session, folder), follow=False)
                why = "**taken over**"
            except PipelineError as error:
                why = f"refused: {error}".partition(" The node is")[0].replace("|", "or")
            lines.append(f"| {name.replace('_', ' ')} | | | {why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    page = ROOT / "docs/from-pyspark.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
