"""What an expression that a client runs may be made of: syntax, functions and types; data, no code.

Nothing here reads beyond the row, keeps state, depends on the clock or on chance, or makes a
value much longer than its arguments. Add to it with that in mind.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

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

# What a value may be cast to.
TYPES: Final = frozenset(
    {DType.BOOLEAN, DType.TINYINT, DType.SMALLINT, DType.INT, DType.BIGINT, DType.INT128}
    | {DType.UTINYINT, DType.USMALLINT, DType.UINT, DType.UBIGINT, DType.FLOAT, DType.DOUBLE, DType.DECIMAL}
    | {DType.CHAR, DType.VARCHAR, DType.NCHAR, DType.NVARCHAR, DType.BPCHAR, DType.TEXT, DType.UUID}
    | {DType.DATE, DType.TIME, DType.TIMESTAMP, DType.TIMESTAMPTZ, DType.TIMESTAMPNTZ, DType.DATETIME}
    | {DType.TIMESTAMP_S, DType.TIMESTAMP_MS, DType.TIMESTAMP_NS, DType.INTERVAL, DType.ARRAY}
)

# What a query over an owner's own tables may be made of besides (query_guard.py): rows in, rows out, nothing that grows
# a value with the number of rows (no list or text made of a group), nothing that reads but the named tables.
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
)
_OVER_WINDOWS: frozenset[type[exp.Expr]] = frozenset(
    {exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile}
    | {exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue}
)
QUERY_NODES: Final = NODES | _CLAUSES | AGGREGATES | _OVER_WINDOWS
