"""Sixty and more things that users get wrong: each one edit of a job that works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

QUERY = "SELECT o.quantity, i.price, i.category, o.returned FROM orders o JOIN items i ON o.item_id = i.item_id"
Files = dict[str, Any]  # name → text, bytes or an Arrow table


def right() -> Files:
    """A job that works."""
    orders = {
        "item_id": [k % 7 for k in range(60)],
        "quantity": [k % 5 for k in range(60)],
        "returned": [k % 3 == 0 for k in range(60)],
    }
    items = {"item_id": list(range(7)), "price": [1.5 * k for k in range(7)], "category": list("abcabca")}
    return {"job.toml": job(), "orders.parquet": pa.table(orders), "items.parquet": pa.table(items)}


def job(query: str = QUERY, *, label: str = 'label = "returned"', more: str = "", tables: str | None = None) -> str:
    """A job file; `more` comes before its tables."""
    if tables is None:
        tables = '[tables]\norders = "orders.parquet"\nitems = "items.parquet"\n'
    return f"query = '''{query}'''\n{label}\n{more}\n{tables}"


def write(files: Files, folder: Path) -> Path:
    for name, content in files.items():
        path = folder / name
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8")
    return folder / "job.toml"


def _orders(**columns: list[Any]) -> Files:
    table = right()["orders.parquet"]
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    return {"orders.parquet": table}


def _query(text: str, **given: str) -> Files:
    return {"job.toml": job(text, **given)}


def _more(text: str) -> Files:
    return {"job.toml": job(more=text)}


def _tables(text: str) -> Files:
    return {"job.toml": job(tables=text)}


JOIN = "FROM orders o JOIN items i ON o.item_id = i.item_id"
# what is wrong → the files that differ, and a word that the message must hold
MISTAKES: dict[str, tuple[Files, str]] = {
    # the file
    "a job that is not TOML": ({"job.toml": "query = = 3"}, "TOML"),
    "a job of binary garbage": ({"job.toml": bytes(range(256))}, "job.toml"),
    "an empty job": ({"job.toml": ""}, "query"),
    "a job without a query": ({"job.toml": 'label = "y"'}, "query"),
    "a job without a label": (_query(QUERY, label=""), "label"),
    "a job without tables": (_tables(""), "tables"),
    "a misspelt key": (_more("epoch = 3"), "did you mean 'epochs'"),
    "a key of nothing": (_more("zzz = 3"), "zzz"),
    "a query and a query file": (_more('query_file = "q.sql"'), "both"),
    "a query file that is not there": ({"job.toml": 'query_file = "q.sql"\nlabel = "y"'}, "q.sql"),
    "a query file of binary garbage": (
        {"job.toml": 'query_file = "q.sql"\nlabel = "y"', "q.sql": b"\xff\xfe\x00SELECT\x80"},
        "UTF-8",
    ),
    "a query file of null bytes": (
        {"job.toml": 'query_file = "q.sql"\nlabel = "y"\n[tables]\norders = "orders.parquet"', "q.sql": b"\x00" * 50},
        "",
    ),
    "a query that is a number": ({"job.toml": 'query = 3\nlabel = "y"'}, "text"),
    "a label that is a number": (_query(QUERY, label="label = 3"), "label"),
    "both kinds of federation": (_more('federation = "f.toml"'), "both"),
    "a federation that is not there": (
        {"job.toml": job(more='federation = "f.toml"', tables=" ")},
        "f.toml",
    ),
    "a federation without tables": (
        {"job.toml": job(more='federation = "f.toml"', tables=" "), "f.toml": "x = 1"},
        "tables",
    ),
    "tables that are a list": ({"job.toml": job(more="tables = [1]", tables=" ")}, "tables"),
    "an algorithm without a name": (_more("[algorithm]\nrho = 1.0"), "name"),
    # options
    "an unknown algorithm": (_more('algorithm = "newtn"'), "did you mean 'newton'"),
    "an unknown model": (_more('model = "logit"'), "logistic"),
    "an option of another algorithm": (_more("rho = 0.5"), "rho"),
    "a negative penalty": (_more("l2 = -1.0"), "l2"),
    "a penalty that is not a number": (_more("l2 = nan"), "l2"),
    "an infinite penalty": (_more("l2 = inf"), "l2"),
    "a penalty that is text": (_more('l2 = "much"'), "l2"),
    "no epochs": (_more("epochs = 0"), "epochs"),
    "half an epoch": (_more("epochs = 2.5"), "epochs"),
    "a batch of nothing": (_more("batch_size = 0"), "batch_size"),
    "a seed below zero": (_more("seed = -1"), "seed"),
    "a seed that is true": (_more("seed = true"), "seed"),
    "a test fraction of one": (_more("test_fraction = 1.0"), "test_fraction"),
    "a test fraction that is not a number": (_more("test_fraction = nan"), "test_fraction"),
    "an infinite tolerance": (_more("tolerance = inf"), "tolerance"),
    "a tolerance that is not a number": (_more("tolerance = nan"), "tolerance"),
    "an infinite rho": (_more('algorithm = "admm"\nrho = inf'), "rho"),
    "a learning rate that is not a number": (_more('algorithm = "sgd"\nlearning_rate = nan'), "learning_rate"),
    "an unknown variant": (_more('algorithm = "admm"\nvariant = "new"'), "variant"),
    "an unknown wire": (_more('wire = "float16"'), "wire"),
    "privacy that is a word": (_more('privacy = "yes"'), "privacy"),
    # tables
    "a table that is not there": (
        _tables('[tables]\norders = "none.parquet"\nitems = "items.parquet"'),
        "none.parquet",
    ),
    "a table of garbage": ({"orders.parquet": b"garbage"}, "orders"),
    "an empty CSV": (
        _tables('[tables]\norders = "orders.csv"\nitems = "items.parquet"') | {"orders.csv": ""},
        "orders",
    ),
    "a source that is a number": (_tables("[tables]\norders = 3\nitems = 4"), "orders"),
    "no sources": (_tables('[tables]\norders = []\nitems = "items.parquet"'), "orders"),
    "no tables at all": (_tables("[tables]\n"), "table"),
    "an unknown kind of file": (_tables('[tables]\norders = "job.toml"\nitems = "items.parquet"'), "orders"),
    "a database of no known kind": (
        _tables('[tables]\norders = {url = "oraclee://h/d", table = "t"}\nitems = "items.parquet"'),
        "orders",
    ),
    # the query
    "an empty query": (_query(""), ""),
    "a query that is prose": (_query("please train a model"), ""),
    "a query that stops short": (_query("SELECT o.quantity FROM"), ""),
    "a query that deletes": (_query("DROP TABLE orders"), "SELECT"),
    "two queries": (_query(f"{QUERY}; {QUERY}"), ""),
    "an unknown column": (_query(QUERY.replace("quantity", "quantitty")), "Did you mean quantity?"),
    "a name with a space": (
        {
            "job.toml": job(QUERY.replace("o.quantity", "o.unit price")),
            **{"orders.parquet": right()["orders.parquet"].append_column("unit price", pa.array([1.0] * 60))},
        },
        'Did you mean o."unit price"?',
    ),
    "a column of nothing": (_orders(quantity=[None] * 60), "NULL in every row"),
    "a job file with a neighbour": (
        {"job.toml": job(more='federation = "federaton.toml"', tables=" "), "federation.toml": "[tables]"},
        "federation.toml?",
    ),
    "an unknown table": (_query(QUERY.replace("orders o", "oders o")), "Did you mean orders?"),
    "an unknown alias": (_query(QUERY.replace("i.price", "x.price")), "x"),
    "a label that is not selected": (_query(QUERY, label='label = "refund"'), "refund"),
    "a group": (_query(f"SELECT i.category, o.returned {JOIN} GROUP BY i.category"), "GROUP BY"),
    "an aggregate": (_query(f"SELECT sum(o.quantity), o.returned {JOIN}"), ""),
    "an inequality between tables": (_query(f"SELECT i.price, o.returned {JOIN} AND o.quantity < i.price"), ""),
    "arithmetic across tables": (_query(f"SELECT o.quantity * i.price AS x, o.returned {JOIN}"), ""),
    "no feature": (_query(f"SELECT o.returned {JOIN}"), ""),
    "a union that is distinct": (_query(f"{QUERY} UNION {QUERY}"), "UNION ALL"),
    "a limit": (_query(f"{QUERY} LIMIT 3"), "LIMIT"),
    # the data
    "a key of another type": (_orders(item_id=[f"i{k % 7}" for k in range(60)]), "item_id"),
    "a join without a row": (_orders(item_id=[100 + k for k in range(60)]), "empty"),
    "a join that is too large": (_more("max_joined_rows = 10"), "10"),
    "a filter that nothing passes": (_query(f"{QUERY} WHERE o.quantity > 99"), "empty"),
    "a table without rows": ({"items.parquet": right()["items.parquet"].slice(0, 0)}, "empty"),
    "a label of one class": (_orders(returned=["no"] * 60), "class"),
    "a label with holes": (_orders(returned=[None, True, False] * 20), "NULL"),
    "a label that is NULL throughout": (_orders(returned=pa.nulls(60, pa.bool_()).to_pylist()), ""),
    "a label of three classes for two": (
        {"job.toml": job(more='model = "logistic"')} | _orders(returned=["a", "b", "c"] * 20),
        "softmax",
    ),
    "a label that is text for a linear model": (
        {"job.toml": job(more='model = "linear"')} | _orders(returned=["a", "b", "c"] * 20),
        "text",
    ),
    "a feature that cannot be one": (_orders(quantity=[b"\x00"] * 60), "quantity"),
    "a label with infinite numbers": (
        {"job.toml": job(more='model = "linear"')} | _orders(returned=[float("inf"), 1.0, 2.0] * 20),
        "returned",
    ),
    "a feature with infinite numbers": (_orders(quantity=[float("inf"), 1.0, 2.0] * 20), "quantity"),
}
