"""How much each feature of a boosted model explains: the gain of its splits, and how many they are.

In: trees, and what their keys mean. Out: a table. Of a block whose owners hold its splits only totals are known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tablepuppet.prediction.model import Model

if TYPE_CHECKING:
    import pandas as pd


def tree_importance(model: Model) -> pd.DataFrame:
    """Columns table, feature, importance (Σ gain), splits (how many); NaN where splits stay with their owner."""
    import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

    gain = [np.zeros(len(block.features)) for block in model.blocks]
    count = [np.zeros(len(block.features)) for block in model.blocks]
    for tree in (t for group in model.trees for t in group):
        for node in tree.splits:
            block = model.blocks[tree.block[node]]
            if not block.is_held:
                feature = block.splits[tree.key[node]].feature
                gain[tree.block[node]][feature] += tree.gain[node]
                count[tree.block[node]][feature] += 1
    rows = []
    for number, block in enumerate(model.blocks):
        for place, feature_name in enumerate(block.features):
            held = np.nan if block.is_held else 0.0
            figures = (gain[number][place] + held, count[number][place] + held)
            rows.append((block.table, feature_name, *figures))
    frame = pd.DataFrame(rows, columns=["table", "feature", "importance", "splits"])
    return frame.sort_values("importance", ascending=False, kind="stable", ignore_index=True)
