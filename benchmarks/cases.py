"""What is measured: joins as tables and SQL, of any size.

In: a name and a number of joined rows (or a scale factor, or a folder). Out: a Case. Synthetic data
is a function of the size alone.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tablepuppet.errors import JobError
from tablepuppet.formatting import size
from tablepuppet.memory import free_memory


@dataclass(frozen=True, slots=True)
class Case:
    """One join to train on."""

    name: str
    tables: dict[str, Any]
    query: str
    label: str = "y"


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement: which case of which size, by which algorithm or baseline."""

    case: str
    rows: int
    folder: Path | None  # of MovieLens, or where TPC-H is kept
    algorithm: str
    model: str
    epochs: int


def star(rows: int) -> Case:
    """A fact table with one row per joined row, and two dimensions."""
    rng = np.random.default_rng(rows)
    users, items = max(2, rows // 100), max(2, rows // 1000)
    user, item = rng.integers(0, users, rows, np.int32), rng.integers(0, items, rows, np.int32)
    x = rng.normal(size=rows)
    facts = pa.table({"u": user, "i": item, "x": x, "y": _labels(rng, x)})
    return Case(
        f"star-{rows:,}",
        {"facts": facts, "users": _dimension(rng, "u", users), "items": _dimension(rng, "i", items)},
        "SELECT f.x, u.a, u.b, i.a, i.b, f.y FROM facts f JOIN users u ON f.u = u.u JOIN items i ON f.i = i.i",
    )


def chain(rows: int) -> Case:
    """facts → users → regions: each table points to the next."""
    rng = np.random.default_rng(rows)
    users, regions = max(2, rows // 50), max(2, rows // 5000)
    x = rng.normal(size=rows)
    facts = pa.table({"u": rng.integers(0, users, rows, np.int32), "x": x, "y": _labels(rng, x)})
    region = pa.array(rng.integers(0, regions, users, np.int32))
    return Case(
        f"chain-{rows:,}",
        {
            "facts": facts,
            "users": _dimension(rng, "u", users).append_column("r", region),
            "regions": _dimension(rng, "r", regions),
        },
        "SELECT f.x, u.a, u.b, r.a, r.b, f.y FROM facts f JOIN users u ON f.u = u.u JOIN regions r ON u.r = r.r",
    )


def many(rows: int) -> Case:
    """A many-to-many join with ten partners each way, and a dimension: N is ten times the largest table."""
    rng = np.random.default_rng(rows)
    side = max(10, rows // 10)
    groups, items = side // 10, max(2, side // 100)
    key = np.arange(side, dtype=np.int32) % groups
    x = rng.normal(size=side)
    left = pa.table({"g": key, "x": x, "y": _labels(rng, x)})
    right = pa.table({"g": key, "i": rng.integers(0, items, side, np.int32), "z": rng.normal(size=side)})
    return Case(
        f"many-{rows:,}",
        {"a": left, "b": right, "items": _dimension(rng, "i", items)},
        "SELECT a.x, b.z, i.a, i.b, a.y FROM a JOIN b ON a.g = b.g JOIN items i ON b.i = i.i",
    )


_TPCH = ("lineitem", "orders", "customer", "part", "supplier")
_TPCH_ROWS = 6_000_000  # joined rows at scale 1
_TPCH_DISK = 320_000_000  # bytes of files at scale 1


def tpch(scale: float, folder: Path) -> Case:
    """lineitem ⋈ orders ⋈ customer ⋈ part ⋈ supplier of TPC-H; is an item returned?"""
    data = folder / f"tpch-{scale:g}"
    if not data.exists():
        _generate(scale, data)
    return Case(
        f"tpch-{scale:g}",
        {name: data / f"{name}.parquet" for name in _TPCH},
        """SELECT l.l_quantity, l.l_extendedprice, l.l_discount, l.l_tax, l.l_shipmode, o.o_totalprice,
                  o.o_orderpriority, c.c_acctbal, c.c_mktsegment, p.p_size, p.p_retailprice, s.s_acctbal,
                  CASE WHEN l.l_returnflag = 'R' THEN 1 ELSE 0 END AS y
           FROM lineitem l JOIN orders o ON l.l_orderkey = o.o_orderkey JOIN customer c ON o.o_custkey = c.c_custkey
           JOIN part p ON l.l_partkey = p.p_partkey JOIN supplier s ON l.l_suppkey = s.s_suppkey""",
    )


def _generate(scale: float, data: Path) -> None:
    """TPC-H as Parquet files: all of them, or none."""
    tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    if not tool.exists():
        raise JobError("TPC-H needs tpchgen-cli; install it with pip install tpchgen-cli")
    data.parent.mkdir(parents=True, exist_ok=True)
    due, free = scale * _TPCH_DISK, shutil.disk_usage(data.parent).free
    if due > free:
        raise JobError(
            f"TPC-H at scale {scale:g} takes about {size(due)} on disk, and {data.parent} has {size(free)} left; make "
            "room there, name another folder (--data), or take a smaller scale"
        )
    with tempfile.TemporaryDirectory(dir=data.parent) as part:
        tables = f"--tables={','.join(_TPCH)}"
        command = [str(tool), "parquet", "-s", f"{scale:g}", tables, f"--output-dir={part}/tpch"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise JobError(f"tpchgen-cli cannot make TPC-H at scale {scale:g} in {data.parent}: {reason}")
        Path(part, "tpch").rename(data)


def movielens(folder: Path) -> Case:
    """MovieLens-1M, a row per rating and genre; is the rating at least 4? Maybe in movielens1m below the folder."""
    inside = folder / "movielens1m"
    folder = inside if inside.is_dir() else folder
    names = ("ratings", "users", "movies_genre")
    for name in names:
        if not (folder / f"{name}.parquet").exists():
            raise JobError(f"{folder} has no {name}.parquet; MovieLens needs {', '.join(names)} as Parquet files")
    return Case(
        "movielens",
        {name: folder / f"{name}.parquet" for name in names},
        """SELECT r.timestamp, u.gender, u.age, u.occupation, m.genre, CASE WHEN r.rating >= 4 THEN 1 ELSE 0 END AS y
           FROM ratings r JOIN users u ON r.user_id = u.user_id JOIN movies_genre m ON r.movie_id = m.movie_id""",
    )


SYNTHETIC: dict[str, Callable[[int], Case]] = {"star": star, "chain": chain, "many": many}


def make_case(name: str, rows: int, folder: Path | None) -> Case:
    """A case by name: star, chain, many, tpch-SCALE, movielens."""
    if name in SYNTHETIC:
        return SYNTHETIC[name](rows)
    if name == "movielens":
        if folder is None:
            raise JobError("movielens needs its folder: --data FOLDER")
        return movielens(folder)
    if name.startswith("tpch-"):
        return tpch(_scale(name), _folder(folder))
    raise JobError(f"unknown case {name!r}; choose from {', '.join(SYNTHETIC)}, tpch-SCALE, movielens")


def make_files(name: str, folder: Path | None) -> str | None:
    """What a case will be read from and has first to be made, in words; None: nothing."""
    if not name.startswith("tpch-"):
        return None
    scale, place = _scale(name), _folder(folder)
    if (place / f"tpch-{scale:g}").exists():
        return None
    return f"TPC-H at scale {scale:g}: {size(scale * _TPCH_DISK)} in {place}, once"


def check_memory(name: str, algorithm: str, bytes_per_row: int) -> None:
    """Refuses a case whose size is known and which would not fit: the system would end the process without a word."""
    if not name.startswith("tpch-"):
        return
    due, free = _scale(name) * _TPCH_ROWS * bytes_per_row, free_memory()
    if due > free:
        raise JobError(
            f"{name} by {algorithm} takes about {size(due)} of memory, and {size(free)} are free; end other programs, "
            "leave it out, or take a smaller scale"
        )


def _scale(name: str) -> float:
    try:
        scale = float(name.removeprefix("tpch-"))
    except ValueError:
        scale = math.nan
    if not 0 < scale < math.inf:
        raise JobError(f"{name!r} has no scale factor; write tpch-0.1, tpch-1 or tpch-10")
    return scale


def _folder(given: Path | None) -> Path:
    return given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tablepuppet"


def _dimension(rng: np.random.Generator, key: str, rows: int) -> pa.Table:
    return pa.table({key: np.arange(rows, dtype=np.int32), "a": rng.normal(size=rows), "b": rng.normal(size=rows)})


def _labels(rng: np.random.Generator, x: Any) -> Any:
    return (x + rng.logistic(size=len(x)) > 0).astype(np.int8)
