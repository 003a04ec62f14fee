"""What is known about SQL functions beyond whether an owner runs them (tables/allowed.py): data, no code.

STRICT ones give NULL as soon as one argument is NULL; nulls.py relies on it, and a test asks DuckDB. VOLATILE ones
depend on when or where they are called, so that two readings of a table would not agree; an owner would refuse them
too, but their reason deserves a message of its own.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

_OPERATORS = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe,
    exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseNot,
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike, exp.Escape, exp.SimilarTo, exp.Glob,
    exp.Cast, exp.TryCast, exp.AtTimeZone,
)  # fmt: skip
_NUMBERS = (
    exp.Abs, exp.Ceil, exp.Floor, exp.Round, exp.Trunc, exp.Sign, exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.Log,
    exp.Pow, exp.Sin, exp.Cos, exp.Tan, exp.Asin, exp.Acos, exp.Atan, exp.Atan2, exp.Sinh, exp.Cosh, exp.Tanh,
    exp.Degrees, exp.Radians, exp.IsNan, exp.IsInf,
)  # fmt: skip
_STRINGS = (
    exp.Lower, exp.Upper, exp.Length, exp.Trim, exp.Substring, exp.Left, exp.Right, exp.Replace, exp.Reverse,
    exp.StartsWith, exp.EndsWith, exp.Contains, exp.StrPosition, exp.SplitPart, exp.RegexpLike, exp.RegexpFullMatch,
    exp.MD5, exp.SHA2,
)  # fmt: skip
_TIMES = (
    exp.Extract, exp.Year, exp.Quarter, exp.Month, exp.Week, exp.WeekOfYear, exp.Day, exp.DayOfMonth, exp.DayOfWeek,
    exp.DayOfWeekIso, exp.DayOfYear, exp.Dayname, exp.Monthname, exp.Hour, exp.Minute, exp.Second,
    exp.TimestampTrunc, exp.DateTrunc, exp.DateDiff, exp.DateAdd, exp.DateSub, exp.Date, exp.LastDay,
    exp.TimeToUnix, exp.UnixToTime, exp.TimeToStr, exp.StrToTime, exp.DateFromParts,
)  # fmt: skip

STRICT: Final[frozenset[type[exp.Expr]]] = frozenset((*_OPERATORS, *_NUMBERS, *_STRINGS, *_TIMES))

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
