"""The counts of tools/check_shape.py find what they are for."""

from __future__ import annotations

import pytest
from tools.check_shape import find_offences


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("def _drawn(): ...", ["participle names"]),
        ("def draw(): ...", []),
        ("@property\ndef converged(self): ...", []),
        ("def f(self, a, b, c, d, e): ...", []),
        ("def f(a, b, c, *, d, e, g): ...", ["functions with six or more parameters"]),
        ("from scipy.sparse import _sparsetools", ["private names of other libraries"]),
        ("import torch\ntorch.nn._hidden", ["private names of other libraries"]),
        ("from tablepuppet.api import _own", []),
    ],
)
def test_each_kind_is_found(text: str, kinds: list[str]) -> None:
    assert [kind for kind, _ in find_offences(text)] == kinds
