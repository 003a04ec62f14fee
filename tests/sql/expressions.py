"""Expressions over one table `o` that a query may push down, for tests of their meaning."""

from __future__ import annotations

# Columns of o: i, j integers · x, z floats · s, w strings · d, e dates · t, u timestamps · b boolean; all may be NULL.
TABLE = """
    CREATE TABLE o AS SELECT * FROM (VALUES
        (1, 2, 0.5, 2.0, 'Alpha', 'al%', DATE '2024-02-29', DATE '2023-12-31',
         TIMESTAMP '2024-02-29 13:45:10', TIMESTAMP '2023-12-31 23:59:59', TRUE),
        (-3, 1, -1.5, 0.25, 'beta-42', 'b_ta%', DATE '2020-01-01', DATE '2024-06-15',
         TIMESTAMP '2020-01-01 00:00:00', TIMESTAMP '2024-06-15 06:07:08', FALSE),
        (0, 0, 0.0, 1.0, '', '%', DATE '1999-12-31', DATE '1999-12-31',
         TIMESTAMP '1999-12-31 12:00:00', TIMESTAMP '1999-12-31 12:00:00', NULL),
        (NULL, 7, NULL, 3.0, NULL, 'x', NULL, DATE '2021-05-05', NULL, TIMESTAMP '2021-05-05 05:05:05', TRUE),
        (5, NULL, 9.0, NULL, 'It''s "q"', NULL, DATE '2022-03-04', NULL, TIMESTAMP '2022-03-04 01:02:03', NULL, FALSE),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
    ) AS v(i, j, x, z, s, w, d, e, t, u, b)
"""

# NULL as soon as one of their columns is.
STRICT = """
    o.i + o.j * 2 - -o.i
    o.i - (o.j - o.i)
    o.x / o.z
    o.i // 2
    o.i % 3
    o.i / o.j
    (o.i + 1) * (o.j - 2)
    o.i & 3 | 4
    ~o.i
    - o.x ^ 2
    o.z ** 2
    power(o.z, 2)
    o.s || '-' || o.w
    o.i = o.j
    NOT o.i = o.j
    o.i <> 1
    o.i != 1
    o.i == 1
    o.x >= 0.5
    o.i < o.j
    o.s LIKE o.w
    o.s NOT LIKE 'b%'
    o.s ILIKE 'ALPHA'
    o.s LIKE 'b!_%' ESCAPE '!'
    o.s ~~ 'A%'
    o.s SIMILAR TO '[a-z]+-[0-9]+'
    o.s GLOB 'A*'
    CAST(o.i AS VARCHAR)
    o.i::text
    o.x::int
    o.i::double
    o.x::decimal(10, 2)
    try_cast(o.s AS integer) + o.i
    abs(o.i)
    ceil(o.x)
    floor(o.x)
    round(o.x * 10, 1)
    trunc(o.x)
    sign(o.i)
    sqrt(o.z)
    cbrt(o.z)
    exp(o.x)
    ln(o.z)
    log(o.z)
    log10(o.z)
    log2(o.z)
    sin(o.x) + cos(o.x) + tan(o.x) + atan(o.x) + sinh(o.x) + cosh(o.x) + tanh(o.x)
    asin(o.z / 10) + acos(o.z / 10)
    atan2(o.x, o.z)
    degrees(o.x) + radians(o.x)
    isnan(o.x) OR isinf(o.x)
    mod(o.i, 2)
    lower(o.s)
    upper(o.s)
    length(o.s)
    trim(o.s)
    ltrim(o.s, 'A')
    substring(o.s, 2, 3)
    substring(o.s FROM 2 FOR 3)
    substr(o.s, 2)
    left(o.s, 2)
    right(o.s, 2)
    replace(o.s, 'a', 'e')
    reverse(o.s)
    starts_with(o.s, 'A')
    ends_with(o.s, '2')
    contains(o.s, 'e')
    strpos(o.s, 'a')
    position('a' IN o.s)
    split_part(o.s, '-', 2)
    regexp_matches(o.s, '^[a-z]')
    o.s ~ '^[a-z]'
    o.s !~ '^[a-z]'
    md5(o.s)
    sha256(o.s)
    extract(hour FROM o.t)
    extract(epoch FROM o.t)
    extract('dow' FROM o.d)
    year(o.d) * 10000 + month(o.d) * 100 + day(o.d)
    quarter(o.d)
    week(o.d)
    dayofweek(o.d)
    isodow(o.d)
    dayofyear(o.d)
    dayname(o.d)
    monthname(o.d)
    hour(o.t) + minute(o.t) + second(o.t)
    date_trunc('month', o.t)
    date_diff('day', o.d, o.e)
    datediff('hour', o.t, o.u)
    o.d + INTERVAL 3 DAY
    o.d - INTERVAL '1 month'
    o.t + INTERVAL (2) HOUR
    o.d - o.e
    last_day(o.d)
    epoch(o.t)
    to_timestamp(o.i)
    strftime(o.t, '%Y-%m')
    strptime(strftime(o.t, '%Y-%m-%d'), '%Y-%m-%d')
    make_date(2000 + o.j, 1, 1)
    o.t::date
    o.t > TIMESTAMP '2021-01-01 00:00:00'
    o.d = '2024-02-29'
    o.d BETWEEN DATE '2020-01-01' AND DATE '2023-01-01'
    o.t AT TIME ZONE 'UTC'
    o.i IN (1, 2, 5)
    o.i NOT IN (1, 2)
    o.i BETWEEN -5 AND 1
    o.i NOT BETWEEN 0 AND 1
    o.x > 0 AND o.x < 2 OR o.x = 9
    NOT o.b
    nullif(o.i, 5)
    coalesce(o.i, o.i)
    coalesce(NULL, o.s)
    CASE WHEN o.i > 0 THEN 'plus' WHEN o.i <= 0 THEN 'minus' END
    CASE o.i WHEN 1 THEN 10 WHEN 5 THEN 50 END
"""

# May have a value although a column is NULL.
LENIENT = """
    o.i IS NULL
    o.i IS NOT NULL
    o.i ISNULL
    o.i NOTNULL
    o.b IS TRUE
    o.b IS NOT TRUE
    (o.i > 0) IS NOT FALSE
    o.i IS DISTINCT FROM o.j
    o.i IS NOT DISTINCT FROM o.j
    coalesce(o.i, o.j, -1)
    ifnull(o.i, 0)
    greatest(o.i, o.j, 1)
    least(o.i, 1)
    concat(o.s, '-', o.w)
    CASE WHEN o.i > 0 THEN 'plus' ELSE 'other' END
    CASE o.i WHEN 1 THEN NULL WHEN NULL THEN 3 ELSE o.j END
    if(o.i > 0, 1, 0)
    o.i > 0 OR o.j > 0
    o.b AND o.i > 0
    o.b OR NOT o.b OR o.i = 1
    o.i NOT IN (1, 2) AND coalesce(o.x, 0) < 1
    regexp_extract(o.s, '[0-9]+')
    nullif(coalesce(o.i, 3), 3)
    date_part('year', coalesce(o.d, o.e))
    pi() * coalesce(o.x, 0)
    o.i IN (1, NULL)
    NOT (o.i = 1 AND o.j = 2)
    1 - coalesce(o.i, 1) - 1
    coalesce(o.i, 1)::varchar || ''''
"""


def lines(block: str) -> list[str]:
    return [line.strip() for line in block.strip().splitlines()]
