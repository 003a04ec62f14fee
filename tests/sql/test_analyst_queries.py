"""Queries as analysts write them for a bank, a shop and a hospital: each trains as on DuckDB's answer to the same text.

Every table has an owner of its own unless a test says otherwise, which is the hardest case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.sql import analysts

import tablepuppet as tp

TABLES = {"bank": analysts.bank(), "shop": analysts.shop(), "hospital": analysts.hospital()}
QUERIES = {
    "a region and a salary of the district": (
        "bank",
        "late",
        """
        -- good vs bad loans, one row per loan
        SELECT l.amount, l.duration, l.payments, d."A11" AS avg_salary, d."A3" AS region, a.frequency,
               CASE WHEN l.status IN ('B','D') THEN 1 ELSE 0 END AS late
        FROM loan l JOIN account a ON l.account_id = a.account_id JOIN district d ON a.district_id = d."A1";
        """,
    ),
    "the owner of the account by USING": (
        "bank",
        "status_num",
        """
        SELECT l.amount / l.duration AS monthly, year(l.date) AS y, extract(month from l.date) AS m, c.gender,
               date_diff('year', c.birth_date, DATE '1998-12-31') AS age, d.A4,
               CASE l.status WHEN 'A' THEN 0.0 WHEN 'B' THEN 1 WHEN 'C' THEN 0 ELSE 1 END AS status_num
        FROM loan AS l INNER JOIN disp USING (account_id)
        JOIN client AS c USING (client_id)
        JOIN district AS d ON d.A1 = c.district_id
        WHERE disp.type = 'OWNER' AND l.date >= '1995-01-01'::date
        """,
    ),
    "the last transaction by row_number": (
        "bank",
        "y",
        """
        SELECT l.amount, l.duration, x.balance AS last_balance, x.date AS last_date, (l.status = 'B' OR
            l.status='D')::int AS y
        FROM loan l
        JOIN (SELECT account_id, balance, date, ROW_NUMBER() OVER (PARTITION BY account_id ORDER BY date DESC,
            trans_id DESC) AS rn FROM trans) x
          ON x.account_id = l.account_id AND x.rn = 1
        """,
    ),
    "quantiles, GROUP BY ALL, an ORDER BY at the end": (
        "bank",
        "amount",
        """
        SELECT l.duration, l.payments, s.q, s.med, l.amount FROM loan l JOIN
         (SELECT account_id, quantile_cont(amount, 0.9) AS q, median(balance) AS med, mode(type) AS m FROM trans
            GROUP BY ALL) AS s USING(account_id)
        ORDER BY l.amount DESC
        """,
    ),
    "a RIGHT JOIN of months": (
        "bank",
        "y",
        """
        select l.amount, l.duration, t.cnt, l.status in ('B','D') as y
        from (select account_id, date_trunc('month', date) as mon, count(*) as cnt from trans group by account_id,
            date_trunc('month', date)) t
        right join loan l on l.account_id = t.account_id
        """,
    ),
    "months before by lag over a CTE": (
        "bank",
        "y",
        """
        WITH monthly AS (
          SELECT account_id, strftime(date, '%Y-%m') AS ym, SUM(amount) AS amt FROM trans GROUP BY account_id, ym),
         lagged AS (SELECT account_id, ym, amt, LAG(amt) OVER (PARTITION BY account_id ORDER BY ym) AS prev,
            AVG(amt) OVER (PARTITION BY account_id ORDER BY ym ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS ma3
            FROM monthly)
        SELECT g.amt - g.prev AS delta, g.ma3, a.frequency, d.A3, l.status='A' AS y FROM lagged g JOIN account a ON
            a.account_id = g.account_id JOIN district d ON d.A1=a.district_id JOIN loan l ON l.account_id =
            a.account_id WHERE g.prev IS NOT NULL
        """,
    ),
    "a UNION ALL that says where rows come from": (
        "bank",
        "y",
        """
        SELECT l.amount, l.status = 'A' AS y, 'x' AS src FROM loan l WHERE l.duration <= 24 UNION ALL SELECT
            l.payments * l.duration, l.status='C', 'y' FROM loan l WHERE l.duration > 24
        """,
    ),
    "names with a schema": (
        "bank",
        "y",
        """
        SELECT main.loan.amount, main.account.frequency, main.loan.status = 'A' AS y FROM main.loan JOIN
            main.account ON main.loan.account_id = main.account.account_id
        """,
    ),
    "an alias of GROUP BY, an OR over one table": (
        "bank",
        "y",
        """
        SELECT l.amount, l.duration, t.n, l.status = 'A' AS y FROM loan l JOIN (SELECT account_id AS acc, COUNT(1)
            AS n FROM trans WHERE date BETWEEN DATE '1994-01-01' AND DATE '1996-12-31' GROUP BY acc) t ON t.acc =
            l.account_id WHERE (l.amount > 10000 AND l.duration = 12) OR l.duration > 24
        """,
    ),
    "ratios of sums, a percentile": (
        "bank",
        "y",
        """
        SELECT l.amount, t.ratio, t.std, t.p25, l.status='A' AS y FROM loan l JOIN (SELECT account_id, sum(case
            when type='VYDAJ' then amount end) / nullif(sum(case when type='PRIJEM' then amount end),0) AS ratio,
            stddev_samp(balance) std, percentile_cont(0.25) WITHIN GROUP (ORDER BY balance) AS p25 FROM trans GROUP
            BY account_id) t ON t.account_id=l.account_id
        """,
    ),
    "first and last by order": (
        "bank",
        "y",
        """
        SELECT l.amount, t.last_bal, t.first_bal, l.status='A' AS y FROM loan l JOIN (SELECT account_id,
            last(balance ORDER BY date, trans_id) AS last_bal, first(balance ORDER BY date, trans_id) AS first_bal
            FROM trans GROUP BY account_id) t ON t.account_id=l.account_id
        """,
    ),
    "distinct symbols": (
        "bank",
        "y",
        """
        SELECT l.amount, l.status='A' AS y, t.k FROM loan l JOIN (SELECT DISTINCT account_id,
            coalesce(nullif(k_symbol,''),'OTHER') AS k FROM "order") t ON t.account_id = l.account_id
        """,
    ),
    "= ANY of another owner's keys": (
        "bank",
        "y",
        """
        SELECT l.amount, l.duration, a.frequency, l.status='A' AS y FROM loan l JOIN account a ON
            a.account_id=l.account_id AND a.frequency LIKE 'POPLATEK %' AND NOT a.frequency = 'POPLATEK TYDNE'
            WHERE l.account_id = ANY (SELECT account_id FROM "order")
        """,
    ),
    "running sums and quarters of the label's table": (
        "bank",
        "y",
        """
        SELECT l.amount, g.cum, l.status='A' AS y FROM loan l JOIN (SELECT loan_id, SUM(amount) OVER (PARTITION BY
            duration ORDER BY date, loan_id ROWS UNBOUNDED PRECEDING) AS cum, NTILE(4) OVER (ORDER BY amount,
            loan_id) AS quart FROM loan) g USING (loan_id) WHERE g.quart > 1
        """,
    ),
    "a LEFT JOIN that WHERE makes an inner one": (
        "bank",
        "y",
        """
        SELECT t1.amount, t2.n AS n_in, t3.n AS n_out, t1.status='A' AS y FROM loan t1 LEFT JOIN (SELECT
            account_id, COUNT(*) n FROM trans WHERE type='PRIJEM' GROUP BY account_id) t2 ON
            t1.account_id=t2.account_id LEFT JOIN (SELECT account_id, COUNT(*) n FROM trans WHERE type='VYDAJ'
            GROUP BY account_id) t3 ON t1.account_id=t3.account_id WHERE t2.n > 3
        """,
    ),
    "comments, quotes and a semicolon": (
        "bank",
        "y",
        """
        SELECT l.amount, d."A11"/1000.0 AS sal, d."A12" IS NULL AS miss, l.status='A' AS y FROM "loan" AS l JOIN
            "account" AS "a" ON l."account_id"="a"."account_id" JOIN "district" d ON "a"."district_id"=d."A1" /*
            only grown loans */ WHERE l.amount >= 5000 -- end
        ;
        """,
    ),
    "a label of four classes": (
        "bank",
        "status",
        """
        SELECT l.amount, l.duration, l.payments, a.frequency, d.A3, l.status FROM loan l JOIN account a
            USING(account_id) JOIN district d ON d.A1 = a.district_id
        """,
    ),
    "commas with WHERE": (
        "shop",
        "Quantity",
        """
        SELECT od.UnitPrice, od.Discount, p.UnitPrice AS list_price, p.Discontinued, cat.CategoryName, od.Quantity
        FROM order_details od, products p, categories cat
        WHERE od.ProductID = p.ProductID AND p.CategoryID = cat.CategoryID AND NOT p.Discontinued
        """,
    ),
    "orders before and after by lead and count": (
        "shop",
        "reordered",
        """
        SELECT o.Freight, o.ShipCountry, h.n_before, h.days_since, CASE WHEN h.nxt IS NOT NULL THEN 1 ELSE 0 END AS
            reordered
        FROM orders o JOIN (
         SELECT OrderID, COUNT(*) OVER (PARTITION BY CustomerID ORDER BY OrderDate, OrderID ROWS BETWEEN UNBOUNDED
            PRECEDING AND 1 PRECEDING) AS n_before,
           date_diff('day', LAG(OrderDate) OVER w, OrderDate) AS days_since, LEAD(OrderDate) OVER w AS nxt
         FROM orders WINDOW w AS (PARTITION BY CustomerID ORDER BY OrderDate, OrderID)) h ON h.OrderID=o.OrderID
        """,
    ),
    "recency, NULLIF and casts": (
        "shop",
        "churn",
        """
        SELECT c.Country, COALESCE(c.Region,'?') AS region, x.n, x.spend, x.avg_gap, (x.last_order < DATE
            '1997-12-01') AS churn
        FROM customers c JOIN (SELECT o.CustomerID, COUNT(DISTINCT o.OrderID) n, SUM(o.Freight) spend,
            MAX(o.OrderDate) last_order, (MAX(o.OrderDate)::date - MIN(o.OrderDate)::date) / NULLIF(COUNT(*)-1,0)
            AS avg_gap FROM orders o GROUP BY o.CustomerID) x ON x.CustomerID=c.CustomerID
        """,
    ),
    "a join inside a join": (
        "shop",
        "Quantity",
        """
        SELECT o.Freight, pc.CategoryName, od.Quantity FROM orders o JOIN order_details od ON od.OrderID =
            o.OrderID JOIN (products p JOIN categories pc ON pc.CategoryID=p.CategoryID) ON p.ProductID=od.ProductID
        """,
    ),
    "recency, frequency, monetary": (
        "shop",
        "Freight",
        """
        SELECT c.Country, r.recency, r.frequency, r.monetary, o.Freight FROM orders o JOIN customers c USING
            (CustomerID) JOIN (SELECT CustomerID, date_diff('day', MAX(OrderDate), TIMESTAMP '1998-06-01') AS
            recency, COUNT(*) AS frequency, SUM(Freight) AS monetary FROM orders GROUP BY CustomerID) r USING
            (CustomerID)
        """,
    ),
    "parentheses around a union": (
        "shop",
        "y",
        """
        (SELECT o.Freight, 'old' AS era, o.ShipVia = 1 AS y FROM orders o WHERE o.OrderDate < DATE '1997-06-01')
            UNION ALL (SELECT o.Freight, 'new' AS era, o.ShipVia = 1 FROM orders o WHERE o.OrderDate >= DATE
            '1997-06-01') ORDER BY 1
        """,
    ),
    "a constant label in each branch": (
        "shop",
        "y",
        """
        SELECT o.Freight, 1 AS y FROM orders o WHERE o.ShippedDate IS NULL UNION ALL SELECT o.Freight, 0 AS y FROM
            orders o WHERE o.ShippedDate IS NOT NULL
        """,
    ),
    "a union in WITH": (
        "shop",
        "y",
        """
        WITH u AS (SELECT OrderID, Freight, 'a' AS src FROM orders WHERE ShipVia=1 UNION ALL SELECT OrderID,
            Freight*2, 'b' FROM orders WHERE ShipVia=2) SELECT u.Freight, u.src, d.Quantity AS y FROM u JOIN
            order_details d ON d.OrderID=u.OrderID
        """,
    ),
    "pairs of products by a self-join": (
        "shop",
        "y",
        """
        SELECT o.Freight, p.n AS pairs, o.ShipVia=1 AS y FROM orders o JOIN (SELECT a.OrderID, COUNT(*) n FROM
            order_details a JOIN order_details b ON a.OrderID=b.OrderID AND a.ProductID < b.ProductID GROUP BY
            a.OrderID) p ON p.OrderID=o.OrderID
        """,
    ),
    "a window over the one table that is read": (
        "shop",
        "y",
        """
        SELECT o.Freight, (o.Freight - AVG(o.Freight) OVER (PARTITION BY o.ShipCountry)) AS dev, o.ShipVia=1 AS y
            FROM orders o
        """,
    ),
    "IN and EXISTS of two owners": (
        "shop",
        "y",
        """
        SELECT o.Freight, o.ShipVia=1 AS y FROM orders o WHERE o.CustomerID IN (SELECT c.CustomerID FROM customers
            c WHERE c.Country = 'USA' OR c.Region IS NULL) AND EXISTS (SELECT * FROM order_details d WHERE
            d.OrderID = o.OrderID AND d.Discount > 0)
        """,
    ),
    "first values by row_number, wide by FILTER": (
        "hospital",
        "los",
        """
        WITH first_labs AS (
          SELECT * FROM (SELECT hadm_id, itemid, valuenum, ROW_NUMBER() OVER (PARTITION BY hadm_id, itemid ORDER BY
            charttime, labevent_id) rn FROM labevents) WHERE rn = 1),
        wide AS (SELECT hadm_id, MAX(valuenum) FILTER (WHERE itemid=50912) c, MAX(valuenum) FILTER (WHERE
            itemid=51301) w FROM first_labs GROUP BY hadm_id)
        SELECT w.c, w.w, a.admission_type, EXTRACT(HOUR FROM a.admittime) AS hr, EPOCH(a.dischtime -
            a.admittime)/86400.0 AS los
        FROM admissions a JOIN wide w USING (hadm_id)
        """,
    ),
    "readmission by lead and intervals": (
        "hospital",
        "readmit",
        """
        SELECT x.gap, x.admission_type, p.anchor_age, x.readmit FROM (
         SELECT subject_id, admission_type, date_diff('day', LAG(dischtime) OVER (PARTITION BY subject_id ORDER BY
            admittime), admittime) AS gap,
          COALESCE(LEAD(admittime) OVER (PARTITION BY subject_id ORDER BY admittime) - dischtime < INTERVAL '30
            days', FALSE) AS readmit FROM admissions) x JOIN patients p ON p.subject_id = x.subject_id
        """,
    ),
    "a correlated minimum": (
        "hospital",
        "flag",
        """
        SELECT p.anchor_age, i.first_careunit, i.los, a.hospital_expire_flag AS flag FROM patients p JOIN
            admissions a ON p.subject_id=a.subject_id JOIN icustays i ON i.hadm_id=a.hadm_id AND
            i.subject_id=p.subject_id
        WHERE i.stay_id = (SELECT MIN(i2.stay_id) FROM icustays i2 WHERE i2.hadm_id = i.hadm_id)
        """,
    ),
    "TRY_CAST and split_part": (
        "hospital",
        "flag",
        """
        SELECT p.anchor_age, TRY_CAST(split_part(r.dose_val_rx, '-', 1) AS DOUBLE) AS dose, r.route, r.drug,
            a.hospital_expire_flag AS flag FROM prescriptions r JOIN admissions a USING (hadm_id) JOIN patients p
            USING (subject_id)
        """,
    ),
    "CTEs with USING": (
        "hospital",
        "flag",
        """
        WITH cohort AS (SELECT a.hadm_id, a.subject_id, a.hospital_expire_flag AS flag FROM admissions a WHERE
            a.admission_type <> 'ELECTIVE'),
         stays AS (SELECT hadm_id, SUM(los) AS icu_days, COUNT(*) AS n_stays FROM icustays GROUP BY hadm_id)
        SELECT s.icu_days, s.n_stays, p.gender, c.flag FROM cohort c JOIN stays s USING (hadm_id) JOIN patients p
            USING (subject_id)
        """,
    ),
    "a cohort by IN": (
        "hospital",
        "y",
        """
        SELECT p.anchor_age, p.gender, a.admission_type, a.hospital_expire_flag AS y FROM patients p, admissions a
            WHERE p.subject_id=a.subject_id AND a.hadm_id IN (SELECT hadm_id FROM diagnoses_icd WHERE icd_code LIKE
            'N17%' AND seq_num <= 5)
        """,
    ),
    "flags of diagnoses": (
        "hospital",
        "y",
        """
        WITH d AS (SELECT hadm_id, MAX(CASE WHEN substr(icd_code,1,3)='I10' THEN 1 ELSE 0 END) htn, MAX(CASE WHEN
            icd_code IN ('E119') THEN 1 ELSE 0 END) dm, COUNT(DISTINCT icd_code) AS cnt FROM diagnoses_icd WHERE
            icd_version=10 GROUP BY hadm_id)
        SELECT d.htn, d.dm, d.cnt, a.marital_status, p.gender, CASE WHEN p.anchor_age > 89 THEN 90 ELSE p.anchor_age END
            AS age, a.hospital_expire_flag AS y FROM admissions a INNER JOIN patients p USING (subject_id) INNER
            JOIN d USING (hadm_id)
        """,
    ),
    "stays without a diagnosis, by LEFT JOIN … IS NULL of a CTE": (
        "hospital",
        "died",
        """
        with icu as (select hadm_id, count(*) n, sum(los) los from icustays group by hadm_id),
             dx as (select distinct hadm_id from diagnoses_icd where icd_code like 'I5%')
        select a.admission_type, p.anchor_age, icu.n, icu.los, a.hospital_expire_flag died
        from admissions a join patients p using (subject_id) join icu using (hadm_id) left join dx using (hadm_id)
        where dx.hadm_id is null
        """,
    ),
    "drugs, and no diagnosis by NOT IN": (
        "hospital",
        "died",
        """
        SELECT pr.n_drugs, pr.iv, a.marital_status, a.hospital_expire_flag died
        FROM admissions a JOIN (SELECT hadm_id, count(distinct drug) n_drugs, max((route = 'IV')::int) iv
            FROM prescriptions GROUP BY hadm_id) pr USING (hadm_id)
        WHERE a.hadm_id NOT IN (SELECT DISTINCT hadm_id FROM diagnoses_icd WHERE icd_code = 'N179')
        """,
    ),
    "NOT EXISTS with names that say no table": (
        "bank",
        "y",
        """
        SELECT loan.amount, loan.duration, district.A11, status = 'A' y FROM loan, account, district
        WHERE loan.account_id = account.account_id AND account.district_id = district.A1
        AND NOT EXISTS (SELECT NULL FROM "order" WHERE "order".account_id = loan.account_id AND k_symbol = 'SIPO')
        """,
    ),
    "NOT IN in one branch of a union": (
        "shop",
        "y",
        """
        SELECT o.Freight, 'recent' AS era, o.ShipVia = 2 AS y FROM orders o
        WHERE o.OrderDate >= '1997-06-01' AND o.CustomerID NOT IN (SELECT CustomerID FROM customers WHERE Country='USA')
        UNION ALL SELECT o.Freight, 'old', o.ShipVia = 2 FROM orders o JOIN customers c USING (CustomerID)
        WHERE o.OrderDate < '1997-06-01'
        """,
    ),
    "values at the first and the last time": (
        "hospital",
        "died",
        """
        SELECT l.first_val, l.last_val, a.hospital_expire_flag AS died FROM admissions a JOIN (SELECT hadm_id,
            arg_min(valuenum, charttime) AS first_val, arg_max(valuenum, charttime) AS last_val FROM labevents
            WHERE itemid = 50912 AND valuenum IS NOT NULL GROUP BY 1) l ON l.hadm_id = a.hadm_id
        """,
    ),
    "the label is an aggregate": (
        "hospital",
        "y",
        """
        SELECT p.anchor_age, x.n, x.y FROM patients p JOIN (SELECT subject_id, count(*) AS n,
            max(hospital_expire_flag) AS y FROM admissions GROUP BY subject_id) x USING (subject_id)
        """,
    ),
}
AT_ONE_OWNER = {
    "a rank over joined rows": (
        "bank",
        """
        SELECT l.amount, RANK() OVER (PARTITION BY a.district_id ORDER BY l.amount, l.loan_id) AS r, l.status = 'A' AS y
        FROM loan l JOIN account a USING (account_id)
        """,
    ),
    "groups of joined rows": (
        "bank",
        """
        SELECT AVG(t.balance) AS balance, l.amount, l.status = 'A' AS y
        FROM loan l JOIN trans t ON t.account_id = l.account_id GROUP BY l.loan_id, l.amount, l.status
        """,
    ),
    "items and conditions over two tables": (
        "bank",
        """
        SELECT date_diff('day', a.date, l.date) AS age, l.amount / t.amount AS ratio, l.status = 'A' AS y
        FROM loan l, account a, trans t
        WHERE l.account_id = a.account_id AND t.account_id = a.account_id AND t.date < l.date
        """,
    ),
    "columns that name no table": (
        "bank",
        "SELECT amount / balance AS r, status = 'A' AS y FROM (SELECT account_id, status FROM loan) JOIN trans "
        "USING (account_id) WHERE balance <> 0",
    ),
    "QUALIFY, ORDER BY and LIMIT": (
        "hospital",
        """
        SELECT p.gender = 'F' AS f, p.anchor_age // 10 * 10 AS decade, a.hospital_expire_flag = 1 AS y
        FROM patients p JOIN admissions a USING (subject_id)
        QUALIFY row_number() OVER (PARTITION BY p.subject_id ORDER BY a.admittime) = 1
        ORDER BY p.subject_id LIMIT 40
        """,
    ),
    "a natural join": (
        "hospital",
        "SELECT anchor_age, hospital_expire_flag = 1 AS y FROM patients NATURAL JOIN admissions",
    ),
    "how many there are in all": (
        "hospital",
        "SELECT a.admission_type, p.anchor_age - n.least AS over, a.hospital_expire_flag = 1 AS y "
        "FROM admissions a JOIN patients p USING (subject_id) "
        "CROSS JOIN (SELECT min(anchor_age) AS least, count(*) AS n FROM patients) n",
    ),
}


@pytest.fixture(scope="module")
def federations() -> Iterator[dict[str, tp.Federation]]:
    opened = {name: tp.Federation(tables) for name, tables in TABLES.items()}
    yield opened
    for federation in opened.values():
        federation.close()


def pooled(name: str, query: str) -> pa.Table:
    """DuckDB's answer on all tables."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for table, frame in TABLES[name].items():
            connection.register(f"given {table}", frame)
            connection.execute(f'CREATE TABLE "{table}" AS SELECT * FROM "given {table}"')
        return connection.sql(query).to_arrow_table()


def check(federation: tp.Federation, name: str, label: str, query: str) -> None:
    """As many rows, and the same optimum, as on the pooled answer."""
    options: dict[str, Any] = {"label": label, "l2": 0.01, "test_fraction": 0.0, "algorithm": "newton"}
    found = federation.train(query, **options)
    rows = pooled(name, query)
    with tp.Federation({"answer": rows}) as one:
        expected = one.train("SELECT * FROM answer", **options)
    assert found.plan.mapping.joined_rows == len(rows)
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-9, atol=1e-12)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_means_what_duckdb_makes_of_it(name: str, federations: dict[str, tp.Federation]) -> None:
    where, label, query = QUERIES[name]
    check(federations[where], where, label, query)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", AT_ONE_OWNER)
def test_what_no_join_can_say_runs_at_the_owner_of_all_its_tables(name: str) -> None:
    where, query = AT_ONE_OWNER[name]
    with tp.Federation(TABLES[where], owners={"house": list(TABLES[where])}) as together:
        check(together, where, "y", query)


def test_what_no_join_can_say_is_refused_where_owners_differ(federations: dict[str, tp.Federation]) -> None:
    for name in ("a rank over joined rows", "groups of joined rows", "items and conditions over two tables"):
        where, query = AT_ONE_OWNER[name]
        with pytest.raises(tp.TablePuppetError, match=r"window function|GROUP BY|mixes columns"):
            federations[where].explain(query, label="y")
