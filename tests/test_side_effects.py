"""Importing the package, opening a federation and training in it leave the user's process as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")

_STATE = """
import ctypes, json, os, signal, sys, warnings
import duckdb, numpy as np, pyarrow as pa, pyarrow.compute, pyarrow.dataset
import scipy.linalg, scipy.sparse, scipy.special, scipy.stats
from threadpoolctl import threadpool_info

def state():
    return {
        "warnings": [repr(entry) for entry in warnings.filters],
        "signals": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "threads": [(entry["filepath"], entry["num_threads"]) for entry in threadpool_info()],
        "environment": dict(os.environ),
        "NumPy errors": np.geterr(),
        "threads of Arrow": (pa.cpu_count(), pa.io_thread_count()),
        "recursion": sys.getrecursionlimit(),
    }

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", *"abcdef")]

def adapts():
    # glibc's threshold follows what is freed, unless somebody has called mallopt: then 20 MB are mapped anew.
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.mallinfo2.restype = Heap
    libc.free(libc.malloc(20 << 20))
    before = libc.mallinfo2().hblks
    place = libc.malloc(20 << 20)
    mapped = libc.mallinfo2().hblks - before
    libc.free(place)
    return mapped == 0

before = state()
import tablepuppet as tp
imported = state()
shops = pa.table({"shop": np.arange(40), "area": np.linspace(0.0, 1.0, 40)})
sales = pa.table({"shop": np.arange(400) % 40, "price": np.linspace(0.0, 1.0, 400), "sold": np.linspace(1.0, 2.0, 400)})
federation = tp.Federation({"shops": shops, "sales": sales})
opened = state()
federation.train("SELECT s.area, t.price, t.sold FROM shops s JOIN sales t ON s.shop = t.shop", label="sold")
trained = state()
SETTINGS
print(json.dumps({"states": [before, imported, opened, trained], "adapts": adapts()}))
"""


def _run(settings: str = "") -> Any:
    call = [sys.executable, "-c", _STATE.replace("SETTINGS", settings)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_federation_and_training_change_nothing_of_the_process() -> None:
    found = _run()
    before, *later = found["states"]
    for state in later:
        assert state == before
    assert found["adapts"]


def test_a_command_that_opens_a_federation_fixes_the_thresholds(tmp_path: Path) -> None:
    (tmp_path / "shops.csv").write_text("area,sold\n" + "".join(f"{i},{2 * i}\n" for i in range(40)))
    job = tmp_path / "job.toml"
    job.write_text('query = "SELECT s.area, s.sold FROM shops s"\nlabel = "sold"\n[tables]\nshops = "shops.csv"\n')
    read = f"from tablepuppet.cli.train import read_job; from pathlib import Path; read_job(Path({str(job)!r}))"
    assert not _run(f"{read}.open_federation().close()")["adapts"]


def test_the_processes_of_the_service_fix_the_thresholds_of_the_allocator() -> None:
    assert not _run("from tablepuppet.memory import fix_thresholds; fix_thresholds()")["adapts"]
