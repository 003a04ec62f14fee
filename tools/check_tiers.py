"""Which tests the quick tier spends its time on, and whether any takes too long: python tools/check_tiers.py FILE.

The file is what `TABLEPUPPET_TEST_TIMES=FILE make test` appends: the CPU seconds of each phase of each test. Seconds of
set-up are those of fixtures that many tests share; only a test's own are judged. Processes of a network are forked by
another process (tests/network/party.py), and Ray's nodes live on: what these take is not among a test's seconds.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

LIMIT = 10.0  # CPU seconds; above it, a test is marked slow
_SHOWN = 10


def read_times(file: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by file in all, and by test without set-up; the longest first."""
    files: dict[str, float] = defaultdict(float)
    tests: dict[str, float] = defaultdict(float)
    for line in file.read_text(encoding="utf-8").splitlines():
        seconds, phase, test = line.split(" ", 2)
        files[test.partition("::")[0]] += float(seconds)
        if phase == "call":
            tests[test] += float(seconds)
    return _sort(files), _sort(tests)


def _sort(seconds: dict[str, float]) -> dict[str, float]:
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))


def main() -> int:
    files, tests = read_times(Path(sys.argv[1]))
    if not tests:
        print(f"{sys.argv[1]} has no test.")
        return 1
    print(f"{len(tests):,} tests took {sum(files.values()) / 60:.1f} CPU minutes. The files that took most:")
    print("\n".join(f"{seconds:8.1f} s  {file}" for file, seconds in list(files.items())[:_SHOWN]))
    slow = [(test, seconds) for test, seconds in tests.items() if seconds > LIMIT]
    if slow:
        print(f"More than {LIMIT:.0f} CPU seconds; make them smaller, or mark them slow:")
        print("\n".join(f"{seconds:8.1f} s  {test}" for test, seconds in slow))
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
