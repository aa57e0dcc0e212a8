"""How Spark spells an expression when it names the column of it: ``a+1`` becomes ``(a + 1)``."""

from __future__ import annotations

from sqlglot import exp

from headgate.sql.parse import SUFFIX

ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
}
COMPARISON: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
BITS: dict[type[exp.Expr], str] = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^"}
SHIFTS: dict[type[exp.Expr], str] = {exp.BitwiseLeftShift: "<<", exp.BitwiseRightShift: ">>"}
_LOGIC: dict[type[exp.Expr], str] = {exp.NullSafeEQ: "<=>", exp.And: "AND", exp.Or: "OR"}
_BINARY = ARITHMETIC | COMPARISON | BITS | SHIFTS | _LOGIC
del _BINARY[exp.NEQ]  # Spark says NOT (a = b)


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
        plain = isinstance(tree.this, exp.Literal) or tree.this.name.startswith(SUFFIX)
        return f"-{inner}" if plain else f"(- {inner})"
    return _spell_special(tree)


def _spell_special(tree: exp.Expr) -> str:
    if isinstance(tree, exp.Boolean):
        return "true" if tree.this else "false"
    if isinstance(tree, exp.Anonymous) and tree.name.startswith(SUFFIX):
        return str(tree.expressions[0].this)
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
    if isinstance(tree, exp.Like | exp.RegexpLike | exp.ILike):
        return _spell_pattern(tree)
    if isinstance(tree, exp.Substring):
        parts = (tree.this, tree.args.get("start"), tree.args.get("length"))
        return f"substring({', '.join(spell(p) for p in parts if p is not None)})"
    if isinstance(tree, exp.Trim) and tree.args.get("expression") is None:
        names = {"LEADING": "ltrim", "TRAILING": "rtrim"}
        return f"{names.get(str(tree.args.get('position')).upper(), 'trim')}({spell(tree.this)})"
    if isinstance(tree, exp.Bracket):
        return f"{spell(tree.this)}[{spell(tree.expressions[0])}]"
    if isinstance(tree, exp.Extract):
        return f"extract({tree.this.name} FROM {spell(tree.expression)})"
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


def _spell_pattern(tree: exp.Expr) -> str:
    left, right = spell(tree.this), spell(tree.expression)
    if isinstance(tree, exp.Like):
        text = f"{left} LIKE {right}"
    else:
        text = f"{'ilike' if isinstance(tree, exp.ILike) else 'RLIKE'}({left}, {right})"
    return f"(NOT {text})" if tree.args.get("negate") else text


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
