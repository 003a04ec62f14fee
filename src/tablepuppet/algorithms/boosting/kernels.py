"""The loops of boosted trees: compiled where the compiler is installed (the extra `fast`), else NumPy's; the same sums,
and so the same trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.models.compiler import is_installed

if TYPE_CHECKING or is_installed():
    from tablepuppet.algorithms.boosting.compiled.bits import *  # noqa: F403
    from tablepuppet.algorithms.boosting.compiled.columns import *  # noqa: F403
    from tablepuppet.algorithms.boosting.compiled.nodes import *  # noqa: F403
    from tablepuppet.algorithms.boosting.compiled.pairs import *  # noqa: F403
    from tablepuppet.algorithms.boosting.compiled.splits import *  # noqa: F403
else:
    from tablepuppet.algorithms.boosting.plain.bits import *  # noqa: F403
    from tablepuppet.algorithms.boosting.plain.columns import *  # noqa: F403
    from tablepuppet.algorithms.boosting.plain.nodes import *  # noqa: F403
    from tablepuppet.algorithms.boosting.plain.pairs import *  # noqa: F403
    from tablepuppet.algorithms.boosting.plain.splits import *  # noqa: F403


def fixed_type(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: a loop is compiled once, wherever its arrays come from."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
