"""Arrays of megabytes go back to the system when they are freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FREED = """
import numpy as np
from tablepuppet.memory import fix_thresholds

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

fix_thresholds()
np.ones(1 << 22)  # glibc would now keep what is freed next
arrays = [np.ones(3 << 19) for _ in range(24)]  # 12 MB each
kept = arrays[-1:]
before = resident()
del arrays
print((before - resident()) * 4096 >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_arrays_leave_the_process_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", _FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 200


_GIVEN_BACK = """
import sys
import numpy as np
from tablepuppet.memory import fix_thresholds, trim_heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

fix_thresholds()
arrays = [np.ones(1 << 17) for _ in range(int(sys.argv[1]))]
kept = arrays[-1:]  # at the top of the heap, where it keeps the rest from going
del arrays
before = resident()
trim_heap()
print((before - resident()) * 4096 >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
@pytest.mark.parametrize("megabytes", [160, 32])
def test_what_smaller_arrays_took_goes_between_stages(megabytes: int) -> None:
    call = [sys.executable, "-c", _GIVEN_BACK, str(megabytes)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert 0.6 * megabytes <= int(done.stdout) <= megabytes


_LONG = """
import numpy as np
import pyarrow as pa
from tablepuppet.memory import fix_thresholds, trim_heap
from tablepuppet.sources.columns import put_together

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

fix_thresholds()
values = np.arange(1 << 17, dtype=np.int64)
batch = pa.record_batch({"a": values, "b": values, "c": values})
table = put_together([batch] * 36, batch.schema)
kept = [np.ones(1 << 12) for _ in range(64)]  # smaller arrays that stay, behind the table's
del table
trim_heap()
before = resident()
array = np.ones(5 << 20)
del array
print((resident() - before) * 4096 >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_long_arrays_do_not_lie_where_a_long_table_was() -> None:
    done = subprocess.run([sys.executable, "-c", _LONG], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8
