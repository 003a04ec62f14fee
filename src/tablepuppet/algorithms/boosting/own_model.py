"""Boosted trees in the rooms that plan, train, evaluate and predict (`OwnModel`)."""

from typing import Any

from tablepuppet.algorithms.algorithm import OwnModel
from tablepuppet.algorithms.boosting import plan, prediction


def _run(prepared: Any, link: Any, job_id: str, on_round: Any) -> Any:
    from tablepuppet.algorithms.boosting.engine import run_boosting  # here: it loads the compiler of kernels

    return run_boosting(prepared, link, job_id, on_round)


OWN_MODEL = OwnModel(
    exposure_title="Exposure: bits that the server may be told of one row, against all that its bins have",
    too_much="be told {numbers:,} bits of a row, practically all that its bins have, whatever noise the model carries. "
    "Cap them with max_splits, or trust the server with them",
    unmatched="stay, all their values there missing",
    refusals={
        "coefficients": "boosted trees have no {what}; importance() says which features their splits ask",
        "drift": "boosted trees keep no mean or spread of their features to compare with; drift looks at linear and "
        "neural models, and evaluate measures trees on new rows",
        "export": "boosted trees ask the tables in turn: no block has a share of its own to export to {what}; write "
        "all trees as LightGBM's, by model.save_lightgbm(path) or tablepuppet export MODEL lightgbm --to FILE",
        "module": "boosted trees have no torch module; see trees and importance()",
    },
    run=_run,
    continue_from=prediction.read_grown_trees,
    advise=plan.advise_trees,
    insights=plan.tree_insights,
    exposures=plan.tree_exposures,
    plan_noise=plan.plan_leaves,
    fingerprints=lambda model: prediction.read_grown_trees(model).names,
    ask_rows=prediction.ask_bits,
    check_columns=prediction.check_columns,
    scores=prediction.tree_scores,
    importance=prediction.tree_importance,
    root_sums=prediction.root_sums,
    set_feature=prediction.set_feature,
    part_feature=prediction.part_feature,
    usual_values=prediction.usual_values,
)
