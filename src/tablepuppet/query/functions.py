"""The functions and operators that a query may push down to an owner: data, no code.

All are scalar, deterministic and free of side effects in every owner's database. STRICT ones give NULL as soon as
one argument is NULL (nulls.py relies on it), LENIENT ones may not.
"""

from __future__ import annotations

from sqlglot import exp

DType = exp.DataType.Type

# Parts of an expression that are no operation by themselves.
PARTS: frozenset[type[exp.Expr]] = frozenset(
    {exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.DataType, exp.DataTypeParam}
    | {exp.Interval, exp.Var}
)

_OPERATORS: frozenset[type[exp.Expr]] = frozenset(
    {exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Pow, exp.Neg, exp.DPipe}
    | {exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift}
    | {exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE}
    | {exp.Like, exp.ILike, exp.Escape, exp.SimilarTo, exp.RegexpLike, exp.RegexpILike, exp.RegexpFullMatch}
    | {exp.Cast, exp.TryCast}
)

_NUMBERS: frozenset[type[exp.Expr]] = frozenset(
    {exp.Abs, exp.Sign, exp.Ceil, exp.Floor, exp.Round, exp.Trunc, exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.Log}
    | {exp.Sin, exp.Cos, exp.Tan, exp.Cot, exp.Asin, exp.Acos, exp.Atan, exp.Atan2, exp.Sinh, exp.Cosh, exp.Tanh}
    | {exp.Degrees, exp.Radians, exp.IsNan, exp.IsInf}
)

_STRINGS: frozenset[type[exp.Expr]] = frozenset(
    {exp.Lower, exp.Upper, exp.Trim, exp.Length, exp.Substring, exp.Left, exp.Right, exp.Pad, exp.Replace}
    | {exp.Reverse, exp.Repeat, exp.StrPosition, exp.StartsWith, exp.EndsWith, exp.Contains, exp.SplitPart}
    | {exp.Ascii, exp.Unicode, exp.Translate, exp.RegexpReplace, exp.Levenshtein}
)

_TIMES: frozenset[type[exp.Expr]] = frozenset(
    {exp.Extract, exp.Year, exp.Quarter, exp.Month, exp.Week, exp.WeekOfYear, exp.Day, exp.DayOfMonth}
    | {exp.DayOfWeek, exp.DayOfWeekIso, exp.DayOfYear, exp.Hour, exp.Minute, exp.Second, exp.Dayname, exp.Monthname}
    | {exp.TimestampTrunc, exp.DateTrunc, exp.DateDiff, exp.DateAdd, exp.DateSub, exp.Date, exp.LastDay}
    | {exp.TimeToStr, exp.StrToTime, exp.TimeToUnix, exp.UnixToTime, exp.DateFromParts}
)

STRICT = _OPERATORS | _NUMBERS | _STRINGS | _TIMES

LENIENT: frozenset[type[exp.Expr]] = frozenset(
    {exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between, exp.NullSafeEQ, exp.NullSafeNEQ}
    | {exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.Concat, exp.ConcatWs}
    | {exp.RegexpExtract, exp.Bracket, exp.ArraySize, exp.Pi}
)

ALLOWED = PARTS | STRICT | LENIENT

# Functions that sqlglot has no class for; both databases below know them under this name.
ALLOWED_BY_NAME = frozenset({"date_part", "datepart", "date_sub", "datesub", "gcd", "lcm", "even", "isfinite", "strlen"})

# What a function gives depends on when or where it is called, so that two readings of a table would not agree.
VOLATILE: frozenset[type[exp.Expr]] = frozenset(
    {exp.Rand, exp.Randn, exp.Uuid, exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.CurrentDatetime}
    | {exp.Localtime, exp.Localtimestamp, exp.CurrentUser, exp.SessionUser, exp.NextValueFor, exp.CurrentSchema}
)
VOLATILE_BY_NAME = frozenset(
    {"now", "today", "random", "setseed", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "nextval", "currval", "lastval"}
    | {"clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday", "current_setting", "txid_current"}
    | {"get_current_time", "get_current_timestamp", "current_localtimestamp", "current_localtime", "version"}
)
# PostgreSQL reads these strings as a moment when they are cast to a date or a timestamp.
VOLATILE_STRINGS = frozenset({"now", "today", "tomorrow", "yesterday"})

CAST_TARGETS = frozenset(
    {DType.BOOLEAN, DType.TINYINT, DType.SMALLINT, DType.INT, DType.BIGINT, DType.INT128}
    | {DType.UTINYINT, DType.USMALLINT, DType.UINT, DType.UBIGINT, DType.FLOAT, DType.DOUBLE, DType.DECIMAL}
    | {DType.CHAR, DType.VARCHAR, DType.NCHAR, DType.NVARCHAR, DType.BPCHAR, DType.TEXT, DType.UUID}
    | {DType.DATE, DType.TIME, DType.TIMESTAMP, DType.TIMESTAMPTZ, DType.TIMESTAMPNTZ, DType.DATETIME}
    | {DType.TIMESTAMP_S, DType.TIMESTAMP_MS, DType.TIMESTAMP_NS, DType.INTERVAL}
)
