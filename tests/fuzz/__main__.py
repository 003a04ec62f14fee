"""Fuzz for a while: `python -m tests.fuzz --minutes 60 --seed 0`. Prints every difference, and ends with 1 if any."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.differential import DifferenceError, judge
from tests.fuzz.queries import make_case
from tests.fuzz.wide_queries import make_wide_case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--refusals", action="store_true", help="count refusals by their text")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    verdicts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    seed = arguments.seed
    while time.monotonic() < end:
        for make in (make_case, make_wide_case):
            try:
                verdict, text = judge(make(seed))
                verdicts[verdict] += 1
                refusals[text.splitlines()[0][:150] if text else ""] += 1
            except DifferenceError as difference:
                verdicts["different"] += 1
                print(f"{make.__name__}({seed}): {difference}\n", flush=True)
        seed += 1
    print(", ".join(f"{count:,} {verdict}" for verdict, count in verdicts.most_common()))
    if arguments.refusals:
        print("\n".join(f"{count:6,} {text}" for text, count in refusals.most_common() if text))
    return int(verdicts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
