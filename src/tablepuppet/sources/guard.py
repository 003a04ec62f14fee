"""The guard: a client runs only scalar expressions over its own columns, whoever asks.

In: SQL text from the server, and the table's column names. Out: the same expression, written
anew from its parse tree for the client to run, or PolicyError.

It is an allow-list: a construct or function that is not named below is refused. Everything allowed is pure and reads
nothing but the row. It cannot make a value grow beyond the length of the expression, so nobody can exhaust an owner's
machine with a short text.
"""

from collections.abc import Callable, Collection
from functools import cache
from typing import Final

from sqlglot import Dialect, TokenType, exp, parse_one
from sqlglot.errors import ErrorLevel, SqlglotError, UnsupportedError
from sqlglot.generators.duckdb import DuckDBGenerator

from tablepuppet.errors import PolicyError

DType = exp.DataType.Type

_SYNTAX: frozenset[type[exp.Expr]] = frozenset(
    {exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Tuple, exp.Var, exp.RawString}
    | {exp.And, exp.Or, exp.Not, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe}
    | {exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift}
    | {exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ}
    | {exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Escape, exp.SimilarTo, exp.Glob}
    | {exp.Case, exp.If, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.Interval, exp.AtTimeZone}
    | {exp.Array, exp.Bracket}
)
_NUMBERS: frozenset[type[exp.Expr]] = frozenset(
    {exp.Abs, exp.Sign, exp.Ceil, exp.Floor, exp.Round, exp.Trunc, exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.Log}
    | {exp.Pow, exp.Pi, exp.Degrees, exp.Radians, exp.IsNan, exp.IsInf}
    | {exp.Sin, exp.Cos, exp.Tan, exp.Cot, exp.Asin, exp.Acos, exp.Atan, exp.Atan2, exp.Sinh, exp.Cosh, exp.Tanh}
    | {exp.Greatest, exp.Least, exp.Coalesce, exp.Nullif}
)
_STRINGS: frozenset[type[exp.Expr]] = frozenset(
    {exp.Lower, exp.Upper, exp.Trim, exp.Length, exp.Substring, exp.Left, exp.Right, exp.Reverse}
    | {exp.Concat, exp.ConcatWs, exp.Replace, exp.Translate, exp.SplitPart, exp.Ascii, exp.Unicode}
    | {exp.StrPosition, exp.StartsWith, exp.EndsWith, exp.Contains, exp.Levenshtein}
    | {exp.RegexpLike, exp.RegexpFullMatch, exp.RegexpExtract, exp.MD5, exp.SHA2, exp.ArraySize}
)
_TIMES: frozenset[type[exp.Expr]] = frozenset(
    {exp.Extract, exp.Year, exp.Quarter, exp.Month, exp.Week, exp.WeekOfYear, exp.Day, exp.DayOfMonth}
    | {exp.DayOfWeek, exp.DayOfWeekIso, exp.DayOfYear, exp.Hour, exp.Minute, exp.Second, exp.Dayname, exp.Monthname}
    | {exp.TimestampTrunc, exp.DateTrunc, exp.DateDiff, exp.DateAdd, exp.DateSub, exp.Date, exp.LastDay}
    | {exp.TimeToStr, exp.StrToTime, exp.TimeToUnix, exp.UnixToTime, exp.DateFromParts, exp.TsOrDsToDate}
)

NODES: Final = _SYNTAX | _NUMBERS | _STRINGS | _TIMES

# Functions that sqlglot has no class for.
FUNCTIONS: Final = frozenset(
    {"array_cosine_similarity", "array_distance", "array_inner_product", "array_value", "century", "date_part"}
    | {"datepart", "decade", "epoch_us", "even", "fdiv", "fmod", "gcd", "isfinite", "lcm", "microsecond"}
    | {"millisecond", "prefix", "strlen", "suffix", "yearweek"}
)

# The types that a value may be cast to.
TYPES: Final = frozenset(
    {DType.BOOLEAN, DType.TINYINT, DType.SMALLINT, DType.INT, DType.BIGINT, DType.INT128}
    | {DType.UTINYINT, DType.USMALLINT, DType.UINT, DType.UBIGINT, DType.FLOAT, DType.DOUBLE, DType.DECIMAL}
    | {DType.CHAR, DType.VARCHAR, DType.NCHAR, DType.NVARCHAR, DType.BPCHAR, DType.TEXT, DType.UUID}
    | {DType.DATE, DType.TIME, DType.TIMESTAMP, DType.TIMESTAMPTZ, DType.TIMESTAMPNTZ, DType.DATETIME}
    | {DType.TIMESTAMP_S, DType.TIMESTAMP_MS, DType.TIMESTAMP_NS, DType.INTERVAL, DType.ARRAY}
)

# The parts of a date or time. Of others, such as the era, DuckDB fails in a way that TRY lets pass.
CLOCK_PARTS: Final = frozenset({"hour", "minute", "second", "millisecond", "microsecond", "epoch"})
CALENDAR_PARTS: Final = frozenset(
    {"year", "quarter", "month", "week", "day", "dow", "dayofweek", "weekday", "isodow", "doy", "dayofyear", "isoyear"}
    | {"yearweek", "decade", "century", "millennium"}
)
PARTS: Final = CLOCK_PARTS | CALENDAR_PARTS

# Further nodes of a query over an owner's own tables (query_guard.py): rows in, rows out. None grows a value with the
# number of rows (no list or text made of a group), and none reads anything but the named tables.
_CLAUSES: frozenset[type[exp.Expr]] = frozenset(
    {exp.Select, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Qualify, exp.Order, exp.Ordered}
    | {exp.Limit, exp.Offset, exp.Distinct, exp.Subquery, exp.Table, exp.TableAlias, exp.Alias, exp.With, exp.CTE}
    | {exp.Union, exp.Except, exp.Intersect, exp.Star, exp.Exists, exp.Any, exp.All}
    | {exp.Window, exp.WindowSpec, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls}
)
AGGREGATES: Final[frozenset[type[exp.Expr]]] = frozenset(
    {exp.Count, exp.CountIf, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Median, exp.Quantile, exp.ApproxDistinct}
    | {exp.PercentileCont, exp.PercentileDisc, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance}
    | {exp.VariancePop, exp.Corr, exp.CovarPop, exp.CovarSamp, exp.Skewness, exp.Kurtosis, exp.Mode}
    | {exp.AnyValue, exp.First, exp.Last, exp.ArgMax, exp.ArgMin, exp.LogicalAnd, exp.LogicalOr}
    | {exp.RegrSlope, exp.RegrIntercept, exp.RegrR2, exp.RegrCount}
)
_OVER_WINDOWS: frozenset[type[exp.Expr]] = frozenset(
    {exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile}
    | {exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue}
)
QUERY_NODES: Final = NODES | _CLAUSES | AGGREGATES | _OVER_WINDOWS

MAX_LENGTH = 50_000  # characters
MAX_DEPTH = 200
MAX_LITERAL = 2_000  # characters of one text in quotes
_MOST: dict[type[exp.Expr], int] = {exp.Levenshtein: 4, exp.TimeToStr: 16}  # calls that cost much, or grow
_JOINED = (exp.Concat, exp.ConcatWs, exp.DPipe)
_GROWING = (*_JOINED, exp.Array)
_MOST_JOINED = 64  # columns whose texts are concatenated: a row's value is as long as all of them
_LONGEST_ARGUMENT = 200  # characters of SQL: of those calls' arguments


def check_expression(sql: str, columns: Collection[str], what: str = "expression") -> str:
    """Refuses all but a scalar expression over `columns`; returns it in DuckDB's dialect.

    >>> check_expression("ln(price) -- net", ["price"])
    'LN("price")'
    """
    known = {column.lower() for column in columns}
    return write_sql(*check_tree(sql, exp.Condition, what, lambda node: _check_node(node, known, what)), what)


def columns_of(sql: str) -> frozenset[str]:
    return frozenset(column.name for column in parse_one(sql, dialect="duckdb").find_all(exp.Column))


def is_one_column(sql: str) -> bool:
    """Whether an expression is a column as it is, or cast."""
    node = parse_one(sql, dialect="duckdb")
    while isinstance(node, exp.Paren | exp.Cast):
        node = node.this
    return isinstance(node, exp.Column)


def compared_columns(sql: str) -> frozenset[str]:
    """The columns whose values a guarded predicate reads; `x IS NOT NULL` asks only whether there is one."""
    tree = parse_one(sql, dialect="duckdb")
    null_tests = [node for node in tree.find_all(exp.Is) if isinstance(node.expression, exp.Null)]
    return frozenset(c.name for c in tree.find_all(exp.Column) if not any(c.parent is test for test in null_tests))


def check_tree(
    sql: str, kind: type[exp.Expr], what: str, check_node: Callable[[exp.Expr], None]
) -> tuple[exp.Expr, int]:
    """The tree of one expression or query whose nodes all pass, and how many there are."""
    if len(sql) > MAX_LENGTH:
        raise refused(what, f"it is {len(sql):,} characters long; at most {MAX_LENGTH:,} are allowed")
    try:
        tree = _parse_tree(sql, kind, what)
    except RecursionError:  # the parser may give up earlier than we do
        raise _too_deep(what) from None
    costs, stack, nodes = Costs(what), [(tree, 0)], 0
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise _too_deep(what)
        check_node(node)
        costs.see(node)
        nodes += 1
        stack.extend((child, depth + 1) for child in node.iter_expressions())
    return tree, nodes


def _parse_tree(sql: str, kind: type[exp.Expr], what: str) -> exp.Expr:
    """The tree of one expression or query; PolicyError if the text is anything else."""
    dialect = Dialect.get_or_raise("duckdb")
    try:
        tokens = dialect.tokenize(sql)
        if any(token.token_type is TokenType.SEMICOLON for token in tokens):
            raise refused(what, "it contains a semicolon; write exactly one expression")
        parser = dialect.parser()
        [tree] = parser.parse(tokens, sql) if kind is exp.Query else parser.parse_into(kind, tokens, sql)
    except SqlglotError:
        # The parser's message marks the text with terminal codes; the server knows its own text.
        tree = None
    if tree is None or (kind is exp.Query and not isinstance(tree, exp.Query)):
        asked = "one SELECT" if kind is exp.Query else "one scalar SQL expression; write one value or condition per row"
        raise refused(what, f"it is not {asked}")
    return tree


class _BoundedWriter(DuckDBGenerator):
    """Writes SQL in a bounded number of steps.

    Functions that DuckDB lacks are written as others, some with their arguments twice. Nested, a short text
    would fill the memory.
    """

    steps = 0

    def sql(self, expression: str | exp.Expr | None, key: str | None = None, comment: bool = True) -> str:
        self.steps -= 1
        if self.steps < 0:
            raise UnsupportedError("too many steps")
        return super().sql(expression, key, comment)


def write_sql(tree: exp.Expr, nodes: int, what: str) -> str:
    """The tree of so many nodes as DuckDB's SQL, in a bounded number of steps."""
    writer = _BoundedWriter(dialect="duckdb", identify=True, comments=False, unsupported_level=ErrorLevel.IMMEDIATE)
    writer.steps = 10 * nodes + 100
    try:
        return writer.generate(tree, copy=False)
    except RecursionError:
        raise _too_deep(what) from None
    except SqlglotError:
        raise refused(what, "it calls a function in a way that DuckDB does not know; write it as DuckDB does") from None


def _check_node(node: exp.Expr, known: Collection[str], what: str) -> None:
    kind = type(node)
    if kind not in NODES and kind is not exp.Anonymous:
        raise refused(what, f"it contains {_title(node)}, which is not part of a scalar expression over one row")
    if kind is exp.Column and node.args.get("table") is not None:
        raise refused(what, f"the column {node.name!r} carries the name of a table; write the column alone")
    if kind is exp.Column and not isinstance(node.this, exp.Identifier):
        raise refused(what, "* stands for many columns; name one")
    if kind is exp.Column and node.name.lower() not in known:
        raise refused(what, f"the table has no column {node.name!r}; it has {', '.join(sorted(known))}")
    check_call(node, what)


class Costs:
    """Counts, in one text, calls that take long for a row (levenshtein) or make its values long (strftime, a || b)."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._calls = dict.fromkeys(_MOST, 0)
        self._joined = 0
        self._growing: exp.Expr | None = None  # the SELECT in which values grow

    def see(self, node: exp.Expr) -> None:
        """Refuses a node beyond a limit."""
        kind = type(node)
        if kind in _MOST:
            self._calls[kind] += 1
            name, most = _title(node), _MOST[kind]
            if self._calls[kind] > most:
                raise refused(self._what, f"it calls {name} more than {most} times; compute it beforehand, as a column")
            if any(len(argument.sql("duckdb")) > _LONGEST_ARGUMENT for argument in node.iter_expressions()):
                raise refused(
                    self._what, f"an argument of {name} is longer than {_LONGEST_ARGUMENT} characters; use columns"
                )
        self._joined += kind is exp.Column and node.find_ancestor(*_JOINED) is not None
        if self._joined > _MOST_JOINED:
            raise refused(self._what, f"it puts more than {_MOST_JOINED} texts together; join some of them beforehand")
        if kind in _GROWING and (select := node.find_ancestor(exp.Select)) is not None:
            if self._growing not in (None, select):  # twice as long in each, a text becomes as long as memory
                raise refused(self._what, "texts or lists are put together in more than one SELECT; do it in one")
            self._growing = select


def check_call(node: exp.Expr, what: str) -> None:
    fault = fault_of(node)
    if fault is not None:
        raise refused(what, fault)


def fault_of(node: exp.Expr) -> str | None:
    """What is wrong with a cast or a call whose result could be of another kind, or much longer, than its arguments."""
    kind = type(node)
    if kind is exp.Anonymous and node.name.lower() not in FUNCTIONS:
        return f"the function {node.name.lower()} is not on the list of safe functions"
    if kind is exp.Literal and node.is_string and len(node.name) > MAX_LITERAL:
        return f"a text in it is {len(node.name):,} characters long; at most {MAX_LITERAL:,} are allowed"
    if kind is exp.DataType and node.this not in TYPES:
        return (
            f"a cast to {node.sql('duckdb')} is not run by owners; cast to BOOLEAN, INTEGER, BIGINT, DOUBLE, "
            "DECIMAL(p, s), VARCHAR, DATE, TIMESTAMP or UUID"
        )
    if kind is exp.Replace:  # nested, it could make a text as long as memory
        old, new = node.args.get("expression"), node.args.get("replacement")
        if not (isinstance(old, exp.Literal) and isinstance(new, exp.Literal) and 0 < len(old.name) >= len(new.name)):
            return "replace(text, old, new) needs literals with new no longer than old"
    if kind is exp.Escape and not _is_whole_pattern(node.this.expression, node.expression):
        return "LIKE … ESCAPE takes a pattern and one character as literals, and no pattern ends with that character"
    if kind is exp.AtTimeZone and not (
        isinstance(node.args["zone"], exp.Literal) and node.args["zone"].name in _zones()
    ):
        return "AT TIME ZONE takes the name of a time zone as a literal, such as 'Europe/Berlin'"
    if kind in (exp.WindowSpec, exp.Ntile) and node.find(exp.Column) is not None:
        return "a frame of a window, and ntile, take numbers, which are the same for all rows"
    part = part_of(node)
    if part is not None and part not in PARTS:
        return f"a part of a date or time is one of {', '.join(sorted(PARTS))}, as a literal"
    if kind is exp.ArraySize and len(list(node.iter_expressions())) > 1:
        return "len(list) takes a list and no dimension"
    if kind is exp.ConcatWs and not isinstance(node.expressions[0], exp.Literal):
        return "concat_ws(separator, …) needs a literal as separator, for it is repeated"
    return None


def _is_whole_pattern(pattern: exp.Expr, escape: exp.Expr) -> bool:
    if not isinstance(pattern, exp.Literal) or not isinstance(escape, exp.Literal) or len(escape.name) != 1:
        return False
    return pattern.name.replace(2 * escape.name, "")[-1:] != escape.name


@cache
def _zones() -> frozenset[str]:
    import duckdb

    with duckdb.connect() as connection:
        return frozenset(name for (name,) in connection.execute("SELECT name FROM pg_timezone_names()").fetchall())


def part_of(node: exp.Expr) -> str | None:
    """The part of a moment that a call asks for; "": it is no literal; None: it asks for none."""
    if isinstance(node, exp.Anonymous):
        if node.name.lower() not in ("date_part", "datepart"):
            return None
        first = node.expressions[0] if node.expressions else None
        return first.name.lower() if isinstance(first, exp.Literal) else ""
    if isinstance(node, exp.Extract):
        return node.name.lower()
    has_unit = isinstance(node, exp.TimestampTrunc | exp.DateTrunc | exp.DateDiff)
    return str(node.args["unit"].name).lower() if has_unit and node.args.get("unit") is not None else None


def _title(node: exp.Expr) -> str:
    """A construct's name, as SQL spells it where it is a function."""
    return f"the function {node.sql_name().lower()}" if isinstance(node, exp.Func) else type(node).__name__.upper()


def _too_deep(what: str) -> PolicyError:
    return refused(what, "it is nested too deeply; write it more simply, for example with IN")


def refused(what: str, why: str) -> PolicyError:
    """The error for a text that the client does not run."""
    return PolicyError(f"the {what} is refused by this client: {why}")
