"""How Spark spells an expression when it names the column of it: ``a+1`` becomes ``(a + 1)``."""

from __future__ import annotations

from sqlglot import exp

_BINARY: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.EQ: "=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "<=>",
    exp.And: "AND",
    exp.Or: "OR",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}


def spell(tree: exp.Expr) -> str:
    """The expression as Spark would name it; sqlglot's spelling where Spark's has no simple rule."""
    operator = _BINARY.get(type(tree))
    if operator is not None:
        return f"({spell(tree.this)} {operator} {spell(tree.expression)})"
    if isinstance(tree, exp.Paren):
        return spell(tree.this)
    if isinstance(tree, exp.Column):
        return ".".join(part.name for part in tree.parts)
    if isinstance(tree, exp.Literal):
        return str(tree.this)
    if isinstance(tree, exp.Neg):
        inner = spell(tree.this)
        return f"-{inner}" if isinstance(tree.this, exp.Literal) else f"(- {inner})"
    return _spell_special(tree)


def _spell_special(tree: exp.Expr) -> str:
    if isinstance(tree, exp.Anonymous):
        return f"{tree.name.lower()}({', '.join(spell(e) for e in tree.expressions)})"
    if isinstance(tree, exp.NEQ):
        return f"(NOT ({spell(tree.this)} = {spell(tree.expression)}))"
    if isinstance(tree, exp.Not):
        if isinstance(tree.this, exp.Is) and isinstance(tree.this.expression, exp.Null):
            return f"({spell(tree.this.this)} IS NOT NULL)"
        return f"(NOT {spell(tree.this)})"
    if isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null):
        return f"({spell(tree.this)} IS NULL)"
    if isinstance(tree, exp.In):
        return f"({spell(tree.this)} IN ({', '.join(spell(e) for e in tree.expressions)}))"
    if isinstance(tree, exp.Between):
        this = spell(tree.this)
        return f"between({this}, {spell(tree.args['low'])}, {spell(tree.args['high'])})"
    if isinstance(tree, exp.TryCast | exp.Cast):
        word = "TRY_CAST" if tree.args.get("safe") else "CAST"
        return f"{word}({spell(tree.this)} AS {tree.to.sql('spark')})"
    if isinstance(tree, exp.DPipe):
        return f"concat({spell(tree.this)}, {spell(tree.expression)})"
    if isinstance(tree, exp.If):
        no = tree.args.get("false")
        return (
            f"(IF({spell(tree.this)}, {spell(tree.args['true'])}, {spell(no) if no is not None else 'NULL'}))"
        )
    if isinstance(tree, exp.Case):
        return _spell_case(tree)
    return str(tree.sql("spark"))


def _spell_case(tree: exp.Case) -> str:
    parts = ["CASE"]
    for branch in tree.args["ifs"]:
        condition = spell(branch.this)
        if tree.this is not None:
            condition = f"({spell(tree.this)} = {condition})"
        parts.append(f"WHEN {condition} THEN {spell(branch.args['true'])}")
    if tree.args.get("default") is not None:
        parts.append(f"ELSE {spell(tree.args['default'])}")
    return " ".join([*parts, "END"])
