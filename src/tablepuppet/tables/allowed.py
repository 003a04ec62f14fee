"""What an expression that a client runs may be made of: syntax nodes, functions and types.

Nothing here reads beyond the row, keeps state, depends on the clock or on chance, or makes a
value much longer than its arguments. Add to it with that in mind.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

_SYNTAX = (
    exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Tuple, exp.Var, exp.RawString,
    exp.And, exp.Or, exp.Not, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe,
    exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseNot,
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ,
    exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Escape, exp.SimilarTo, exp.Glob,
    exp.Case, exp.If, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.Interval, exp.AtTimeZone,
    exp.Array, exp.Bracket,
)  # fmt: skip
_NUMBERS = (
    exp.Abs, exp.Ceil, exp.Floor, exp.Round, exp.Trunc, exp.Sign, exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.Log,
    exp.Pow, exp.Sin, exp.Cos, exp.Tan, exp.Asin, exp.Acos, exp.Atan, exp.Atan2, exp.Sinh, exp.Cosh, exp.Tanh,
    exp.Degrees, exp.Radians, exp.Pi, exp.IsNan, exp.IsInf, exp.Greatest, exp.Least, exp.Coalesce, exp.Nullif,
)  # fmt: skip
_STRINGS = (
    exp.Lower, exp.Upper, exp.Length, exp.Trim, exp.Substring, exp.Left, exp.Right, exp.Concat, exp.Replace,
    exp.Reverse, exp.StartsWith, exp.EndsWith, exp.Contains, exp.StrPosition, exp.SplitPart, exp.RegexpLike,
    exp.RegexpExtract, exp.RegexpFullMatch, exp.Initcap, exp.MD5, exp.SHA2,
)  # fmt: skip
_TIMES = (
    exp.Extract, exp.Year, exp.Quarter, exp.Month, exp.Week, exp.WeekOfYear, exp.Day, exp.DayOfMonth, exp.DayOfWeek,
    exp.DayOfWeekIso, exp.DayOfYear, exp.Dayname, exp.Monthname, exp.Hour, exp.Minute, exp.Second,
    exp.DateTrunc, exp.TimestampTrunc, exp.DateDiff, exp.DateAdd, exp.DateSub, exp.Date, exp.LastDay,
    exp.TimeToUnix, exp.UnixToTime, exp.TimeToStr, exp.StrToTime, exp.DateFromParts, exp.TsOrDsToDate,
)  # fmt: skip

NODES: Final[frozenset[type[exp.Expr]]] = frozenset((*_SYNTAX, *_NUMBERS, *_STRINGS, *_TIMES))

# DuckDB functions that sqlglot has no class for.
FUNCTIONS: Final = frozenset(
    {
        "age", "array_cosine_similarity", "array_distance", "array_inner_product", "array_value", "century", "date_part",
        "decade", "epoch_us", "era", "even", "fdiv", "fmod", "isfinite", "millennium", "microsecond", "millisecond",
        "prefix", "suffix", "yearweek",
    }
)  # fmt: skip

_T = exp.DType
TYPES: Final = frozenset(
    {
        _T.BOOLEAN, _T.TINYINT, _T.SMALLINT, _T.INT, _T.BIGINT, _T.UTINYINT, _T.USMALLINT, _T.UINT, _T.UBIGINT,
        _T.FLOAT, _T.DOUBLE, _T.DECIMAL, _T.VARCHAR, _T.TEXT, _T.CHAR, _T.DATE, _T.TIME, _T.TIMESTAMP,
        _T.TIMESTAMPNTZ, _T.TIMESTAMPTZ, _T.TIMESTAMP_S, _T.TIMESTAMP_MS, _T.TIMESTAMP_NS, _T.UUID, _T.ARRAY,
        _T.INTERVAL,
    }
)  # fmt: skip
