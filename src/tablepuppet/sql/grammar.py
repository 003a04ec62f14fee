"""check_grammar: DuckDB's own parser reads the text, and its complaint becomes ours.

DuckDB is strict and locates an error to the letter. sqlglot guesses: it takes `ON o.id = LEFT JOIN c` for a column
called LEFT.

check_clauses: refuses the clauses of SELECT and UNION that cannot be federated, each with a replacement.

check_nodes: may this expression be pushed down to the owner of its columns? It passes if every node of its tree is on
the owners' own list (sources/guard.py). An owner's guard checks again; this check serves the person who writes the
query, and points at the place in the text. VOLATILE functions depend on when or where they are called, so two reads of
a table would disagree. An owner would refuse these too, but their reason deserves a message of its own.

`refuse` and its like: a node of the syntax tree or an offset → line and column, and the error that points there.
"""

import json
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from threading import Lock
from typing import Any, Final

import duckdb
from sqlglot import Dialect, Token, TokenType, exp

from tablepuppet.errors import QueryError, nearest
from tablepuppet.sources.guard import FUNCTIONS, NODES, fault_of

At = exp.Expr | int | None
DIALECT = Dialect.get_or_raise("duckdb")


@lru_cache(maxsize=8)
def words(text: str) -> tuple[Token, ...]:
    """The text as SQL words, without the semicolons at its end; raises sqlglot's error if it cannot be split."""
    tokens = DIALECT.tokenize(text)
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    return tuple(tokens)


def start_of(node: exp.Expr) -> int | None:
    """The offset of the first character of a node, as far as its parts remember theirs."""
    return min((n.meta["start"] for n in node.walk() if "start" in n.meta), default=None)


def word_before(text: str, at: At, *kinds: TokenType) -> int | None:
    """The offset of the last word of these kinds that does not come after `at`; `at` itself if there is none.

    Keywords leave no trace in the syntax tree: GROUP BY is found as the last GROUP BY before its first column.
    """
    offset = start_of(at) if isinstance(at, exp.Expr) else at
    end = len(text) if offset is None else offset
    found = [w.start for w in words(text) if w.token_type in kinds and w.start <= end]
    return found[-1] if found else offset


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """The place of an offset, both counted from 1; an offset past the end is just behind the last character.

    >>> line_and_column("SELECT x\\nFROM t", 14)
    (2, 6)
    """
    lines = text[: offset + 1].splitlines(keepends=True) or [""]
    return len(lines), len(lines[-1]) if offset < len(text) else len("".join(lines[-1].splitlines())) + 1


def refusal(text: str, message: str, at: At, kind: type[QueryError] = QueryError) -> QueryError:
    """An error that shows the text with a caret below `at`."""
    offset = start_of(at) if isinstance(at, exp.Expr) else at
    if offset is None:
        return kind(message, text=text)
    line, column = line_and_column(text, offset)
    return kind(message, text=text, line=line, column=column)


INVALID = "the query is not valid SQL"
PARAMETER = "the query has a parameter, and nothing fills it in; write the value into the text"
TOO_DEEP = "the query is nested too deeply; drop needless parentheses, and write x IN (1, 2, …) instead of a long OR"
_PARAMETER = re.compile(r"[:@%][A-Za-z_(]")
_lock = Lock()


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """A database without tables or files, whose parser locates errors."""
    connection = duckdb.connect(config={"threads": 1, "enable_external_access": False})
    connection.execute("SET errors_as_json = true")
    return connection


def check_grammar(text: str, tokens: Sequence[Token] = ()) -> None:
    """Raises QueryError unless DuckDB's parser takes the text, whose words are `tokens`, for SQL."""
    try:
        with _lock:
            _duckdb().extract_statements(text)
    except duckdb.Error as error:
        raise _complaint(text, tokens, _details(str(error))) from None


@lru_cache(maxsize=256)
def evaluate(expression: str) -> Any:
    """The value of an SQL expression without columns, which owners allow (sources/guard.py); or DuckDB's error."""
    with _lock:
        ((value,),) = _duckdb().execute(f"SELECT {expression}").fetchall()
    return value


def is_parameter(text: str, at: int) -> bool:
    """A placeholder of some library begins here: :name, @name, %s, %(name)s."""
    return _PARAMETER.match(text, at) is not None


def _complaint(text: str, tokens: Sequence[Token], found: dict[str, object]) -> QueryError:
    what = next(iter(str(found.get("exception_message", "")).splitlines()), "it cannot be read").rstrip(".")
    if "expression depth" in what:
        return QueryError(TOO_DEEP)
    position = found.get("position")
    if not isinstance(position, str):
        return QueryError(f"{INVALID}: {what if what[:2].isupper() else what[:1].lower() + what[1:]}")
    at = len(text.encode()[: int(position)].decode(errors="ignore"))  # DuckDB counts bytes
    if is_parameter(text, at):
        return refusal(text, PARAMETER, at)
    missing = _join_without_on(tokens)
    if missing is not None:
        return refusal(text, "this JOIN has no ON; name its keys: ON a.id = b.id, or USING (id)", missing)
    before = text[:at].split()[-1:]
    if before and before[0].upper() == "TOP":
        return refusal(text, "TOP takes some of the joined rows, and every one is used; choose rows by WHERE", at)
    if what.endswith('"["'):
        return refusal(text, 'names are quoted by double quotes here, as in o."unit price", not by brackets', at)
    quoting = ""
    for found_name in _NAME_AT.finditer(text):  # a reserved word in the place of a name
        word = found_name[1] or found_name[2]
        if word.lower() in _reserved_words() and found_name.start() <= at <= found_name.end():
            quoting = f'; a table or column called {word} is written "{word}"'
            break
    return refusal(text, f"{INVALID}: {what}; check the words around the caret{quoting}", at)


_NAME_AT = re.compile(r"(?:(?:\b(?:FROM|JOIN)\s|[,.])\s*([A-Z_]+)|\b([A-Z_]+)\s*\.)", re.IGNORECASE)


@cache
def _reserved_words() -> frozenset[str]:
    """The words that cannot be names unless they are quoted."""
    sql = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    with _lock:
        return frozenset(word for (word,) in _duckdb().execute(sql).fetchall())


def _details(message: str) -> dict[str, object]:
    """The fields of an error message that is JSON after its first words."""
    try:
        found = json.loads(message[message.index("{") :])
    except ValueError:
        return {"exception_message": message}
    return found if isinstance(found, dict) else {}


def _join_without_on(tokens: Sequence[Token]) -> int | None:
    """The offset of a JOIN whose table and alias neither ON nor USING follows: the commonest slip of all."""
    name = (TokenType.VAR, TokenType.IDENTIFIER)
    for k, token in enumerate(tokens):
        before = tokens[k - 1].text.upper() if k else ""
        if token.token_type != TokenType.JOIN or before in ("CROSS", "NATURAL", "POSITIONAL"):
            continue
        rest = [t for t in tokens[k + 1 : k + 5] if t.token_type != TokenType.ALIAS]
        names = 2 if len(rest) > 1 and rest[1].token_type in name else 1
        follower = rest[names].token_type if len(rest) > names else None
        named = bool(rest) and rest[0].token_type in name
        if named and follower in (None, TokenType.WHERE, TokenType.UNION, TokenType.COMMA, TokenType.R_PAREN):
            return token.start
    return None


_ALL_ROWS = "because training uses every joined row, in any order"
SAMPLE = "a sample is not supported, because two readings would not agree; write a condition on a column in WHERE"

# Argument of sqlglot's node → the keyword that the caret is put under, and the message.
_REFUSED: Final[dict[str, tuple[TokenType, str]]] = {
    "distinct": (
        TokenType.DISTINCT,
        "DISTINCT is not supported, because the model is trained on every row of the join, copies included. Remove it; "
        "where one table has copies, write (SELECT DISTINCT … FROM t) t in its place, and for one row of each key "
        "(SELECT DISTINCT ON (key) * FROM t ORDER BY key, day DESC) t",
    ),
    "group": (
        TokenType.GROUP_BY,
        "GROUP BY is not supported, because the model is trained on the joined rows themselves. Select the columns as "
        "they are; if one table has to be summed up first, join a subquery: "
        "JOIN (SELECT key, avg(x) AS x FROM t GROUP BY key) t ON …, and with no other table "
        "SELECT g.x, g.y FROM (SELECT …, avg(x) AS x FROM t GROUP BY …) g",
    ),
    "having": (TokenType.HAVING, "HAVING is not supported, because there are no groups; write the condition in WHERE"),
    "qualify": (
        TokenType.QUALIFY,
        "QUALIFY is not supported over joined rows; write it over one table, in that table's place: "
        "(SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY key ORDER BY day) = 1) t",
    ),
    "windows": (TokenType.WINDOW, "WINDOW is not supported over joined rows; write it in a subquery over one table"),
    "limit": (
        TokenType.LIMIT,
        f"LIMIT is not supported, {_ALL_ROWS}. Remove it; to train on fewer rows, write a condition in WHERE",
    ),
    "offset": (
        TokenType.OFFSET,
        f"OFFSET is not supported, {_ALL_ROWS}. Remove it; to train on fewer rows, write a condition in WHERE",
    ),
    "sample": (TokenType.TABLE_SAMPLE, SAMPLE),
}


def check_clauses(text: str, query: exp.Expr, read: frozenset[str]) -> None:
    """Raises QueryError for the first clause of a query node that is not among those `read`."""
    for key, value in query.args.items():
        if key in read or key == "order" or not value:  # an order changes nothing, as long as no LIMIT follows it
            continue
        if key not in _REFUSED:
            name = key.rstrip("_").replace("_", " ").upper()
            raise refusal(text, f"{name} is not supported in a query; remove it", query)
        keyword, message = _REFUSED[key]
        at = start_of(value) if isinstance(value, exp.Expr) else None
        raise refusal(text, message, word_before(text, at, keyword))


VOLATILE: Final[frozenset[type[exp.Expr]]] = frozenset(
    {
        exp.Rand, exp.Randn, exp.Uuid, exp.NextValueFor, exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp,
        exp.CurrentDatetime, exp.Localtime, exp.Localtimestamp, exp.CurrentUser, exp.SessionUser, exp.CurrentSchema,
        exp.CurrentVersion,
    }
)  # fmt: skip
VOLATILE_BY_NAME: Final = frozenset(
    {
        "clock_timestamp", "current_localtime", "current_localtimestamp", "current_setting", "currval",
        "gen_random_uuid", "get_current_time", "get_current_timestamp", "lastval", "nextval", "now", "setseed",
        "statement_timestamp", "timeofday", "transaction_timestamp", "txid_current", "uuidv4", "uuidv7",
    }
)  # fmt: skip
# PostgreSQL reads these strings as a moment when they are cast to a date or a timestamp.
VOLATILE_STRINGS: Final = frozenset({"now", "today", "tomorrow", "yesterday"})

_INSTEAD: Final = {  # functions of other dialects
    "age": "date_diff('day', from, to)",
    "to_char": "strftime(moment, '%Y-%m')",
    "date_format": "strftime(moment, '%Y-%m')",
    "dateadd": "moment + INTERVAL 30 DAY",
    "to_days": "INTERVAL 30 DAY",
    **dict.fromkeys(("timestampdiff", "datetime_diff", "date_sub", "datesub"), "date_diff('day', from, to)"),
    "julianday": "date_diff('second', from, to) / 86400.0 for the days between two moments",
    "unix_timestamp": "epoch(moment)",
    "weekday": "dayofweek(moment), which is 0 on Sundays",
    "to_date": "CAST(x AS DATE), or strptime(text, '%d.%m.%Y')",
    "time_bucket": "date_trunc('week', moment)",
    "width_bucket": "floor(x / 10), or CASE WHEN x < 10 THEN 0 WHEN x < 50 THEN 1 ELSE 2 END",
    "regexp_replace": "regexp_extract(text, pattern)",
    "isnull": "coalesce(x, 0), or x IS NULL",
    "charindex": "strpos(text, part)",
    "convert": "CAST(x AS DOUBLE)",
}
_VIEW = "let the table's owner offer the result as a column of a view"
_STAR = "* stands for all columns and can only be an item of the SELECT list, as in alias.*"
_NAMES = sorted(FUNCTIONS | {n.lower() for node in NODES if issubclass(node, exp.Func) for n in node.sql_names()})


def check_nodes(text: str, expression: exp.Expr, allowed: frozenset[type[exp.Expr]] = NODES) -> None:
    """Raises QueryError, pointing into `text`, unless a tree is made of these nodes and of functions owners know.

    Those of an expression are scalar and deterministic.
    """
    # Depth first, so that sum(x) OVER () is called a window function and not an aggregate.
    for node in expression.walk(bfs=False):
        if isinstance(node, exp.Anonymous):
            if node.name.lower() not in FUNCTIONS:
                raise _refuse(text, node)
        elif type(node) not in allowed:
            if isinstance(node, exp.AggFunc) and exp.Select in allowed:
                raise refusal(
                    text,
                    "owners do not run this aggregate, whose value grows with the rows of a group; "
                    "use count, sum, avg, min, max, stddev, median or another that gives a number",
                    node,
                )
            raise _refuse(text, node)
        elif isinstance(node, exp.Column) and node.args.get("db"):
            raise refusal(
                text,
                "a column has at most one name before it, the alias of its table: write alias.column. "
                f"For a field inside a struct, {_VIEW}",
                node,
            )
        elif isinstance(node, exp.Column) and isinstance(node.this, exp.Star) and exp.Star not in allowed:
            raise refusal(text, _STAR, node)
        fault = fault_of(node.to if isinstance(node, exp.Cast) else node)
        if fault is not None:
            raise refusal(text, fault, node)
        operand = node.this if isinstance(node, exp.Cast) else None
        if isinstance(operand, exp.Literal) and operand.name.strip().lower() in VOLATILE_STRINGS:
            raise refusal(text, f"'{operand.name}' means another moment at every reading; write the date itself", node)


def _refuse(text: str, node: exp.Expr) -> QueryError:
    """Why a node is not on the list, and its replacement."""
    at: At = node
    match node:
        case exp.Query() | exp.Exists() | exp.Any() | exp.All() | exp.Table():
            message = (
                "a subquery is not supported here; write it in FROM, as in JOIN (SELECT …) t ON …, over tables of one "
                "owner"
            )
            at = word_before(text, node, TokenType.SELECT)
        case exp.Window():
            message = (
                "a window function over joined rows is not supported; if it needs one table only, write it in a "
                "subquery: JOIN (SELECT *, lag(x) OVER (…) AS before FROM t) t ON …"
            )
        case exp.AggFunc() | exp.Filter() | exp.WithinGroup() | exp.Distinct():
            message = (
                "an aggregate over joined rows is not supported: training needs the rows themselves. If it needs "
                "one table only, write a subquery: JOIN (SELECT key, avg(x) AS x FROM t GROUP BY key) t ON …"
            )
        case exp.Placeholder() | exp.Parameter() | exp.SessionParameter():
            message = PARAMETER
            at = _first_word(text, "?", "$", ":", "@")
        case exp.Star():
            message = _STAR
        case exp.Columns():
            message = "COLUMNS stands for whatever columns there are; list them by name"
        case _ if type(node) in VOLATILE or _name(text, node) in VOLATILE_BY_NAME:
            message = (
                f"{_name(text, node)} gives another value at every reading, so that a run could not be repeated; "
                "write a constant, or use a column that holds the value"
            )
            at = node.meta.get("start", _first_word(text, _name(text, node)))
        case exp.Func() if _name(text, node) in _INSTEAD:
            message = f"owners do not run the function {_name(text, node)}. Write {_INSTEAD[_name(text, node)]}"
        case exp.Bracket() | exp.Slice():
            message = f"a part of a string or a list is not taken with [ ]; write substring(x, 1, 3), or {_VIEW}"
        case exp.Func() if "start" in node.meta:
            near = nearest(_name(text, node), _NAMES, cutoff=0.75)
            hint = f"Did you mean {near}? Otherwise" if near else "Use another, or"
            message = f"owners do not run the function {_name(text, node)}. {hint} {_VIEW}"
        case _:
            message = f"this expression cannot be pushed down to the owner of its columns; {_VIEW}"
    return refusal(text, message, at)


def _name(text: str, node: exp.Expr) -> str:
    """A function's name as written."""
    if "start" in node.meta:
        return text[node.meta["start"] : node.meta["end"] + 1].lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _first_word(text: str, *written: str) -> int | None:
    return next((w.start for w in words(text) if w.text.lower() in written), None)
