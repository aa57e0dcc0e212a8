"""Writes the table of functions from Spark's own list.

``docs/functions.md`` says which of Spark's functions are supported, how each is computed, what is refused.
``src/headgate/sql/catalog.tsv`` holds each supported function's signature, description and example, for
``headgate functions``.  Signatures, descriptions and examples are Spark's own (Apache License 2.0).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headgate.sql import compile_aggregate, compile_expression, supported_functions
from headgate.sql.registry import AGGREGATES, FUNCTIONS, REFUSED

ROOT = Path(__file__).parent.parent
OPERATORS = re.compile(r"[^a-z]|^(and|between|case|cast|in|not|or|when)$")


def described(spark: Any, name: str) -> tuple[str, str, list[str]]:
    """Signature, first sentence and examples of a function, as Spark describes it."""
    lines = [row[0] for row in spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()]
    usage = next((line for line in lines if line.startswith("Usage:")), "")
    usage = " ".join(usage.removeprefix("Usage:").split())
    signature, _, rest = usage.partition(" - ")
    examples = re.findall(r"> SELECT (.*?);", "\n".join(lines), re.DOTALL)
    sentence = re.split(r"(?<=[a-z`)])\. |\. ?$", rest)[0]
    return signature.strip(), sentence.strip(), [" ".join(e.split()) for e in examples]


def example(name: str, texts: list[str]) -> str:
    """The first of Spark's examples that also works here, or none."""
    import pyarrow as pa

    schema = pa.schema([("col", pa.int32())])
    for text in texts:
        if " FROM " in text.upper() and name in AGGREGATES:
            return text.split(" FROM ")[0] if " FROM VALUES" in text else text
        try:
            (compile_aggregate if name in AGGREGATES else compile_expression)(text, schema)
        except Exception:
            continue
        return text
    return ""


def main() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    names = [row[0] for row in spark.sql("SHOW FUNCTIONS").collect()]
    write(spark, names)


def write(spark: Any, names: list[str]) -> None:
    ours = set(supported_functions()) | AGGREGATES
    compared = (ROOT / "tests/sql/function_cases.txt").read_text() + (
        ROOT / "tests/sql/test_expression_oracle.py"
    ).read_text()
    catalog, rows, refused = [], [], []
    for name in names:
        if name not in ours:
            if not OPERATORS.search(name.replace("_", "").rstrip("0123456789")):
                refused.append(name)
            continue
        signature, sentence, texts = described(spark, name)
        signature = signature or f"{name}(...)"
        kind = "aggregate" if name in AGGREGATES else "row"
        way = "per distinct value or row" if name in FUNCTIONS and FUNCTIONS[name].per_row else "by arrays"
        catalog.append("\t".join([name, kind, way, signature, example(name, texts), sentence]))
        judged = "yes" if re.search(rf"\b{name}\(", compared, re.IGNORECASE) else "by group"
        rows.append(f"| `{name}` | {kind} | {way} | {judged} | {sentence.replace('|', 'or')} |")
    (ROOT / "src/headgate/sql/catalog.tsv").write_text("\n".join(catalog) + "\n")
    reasons = [f"- `{name}`: {REFUSED[name]}" for name in refused if name in REFUSED]
    others = ", ".join(f"`{name}`" for name in refused if name not in REFUSED)
    page = [
        "# Functions",
        "",
        f"This page lists the {len(rows)} of Spark's functions that Headgate knows. `headgate functions",
        f"[PATTERN]` shows an example of each. `scripts/functions_table.py` writes it, for {spark.version}.",
        "",
        "*By arrays*: a packet's values are computed at once. *Per distinct value or row*: no kernel does",
        "it, so Python sees the distinct values of a column, or rows if several operands vary. *Compared*:",
        "the oracle tests compare it with Spark on awkward values; *by group*: over groups.",
        "",
        "A DOUBLE as text has the digits of Java 19 and later, which are at times fewer than Java 17's.",
        "Bytes that are not UTF-8 become U+FFFD when cast to STRING. `approx_count_distinct` is exact here.",
        "",
        "| function | kind | computed | compared | what it does |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "## Refused",
        "",
        "These are refused in expressions when the pipeline is built. In a [SELECT](sql.md), `explode`,",
        "`posexplode`, `window`, `session_window` and `row_number` are clauses of their own.",
        "",
        *reasons,
        f"- Not supported: {others}.",
        "",
    ]
    (ROOT / "docs/functions.md").write_text("\n".join(page))
    print(f"{len(rows)} supported, {len(refused)} refused")


if __name__ == "__main__":
    main()
