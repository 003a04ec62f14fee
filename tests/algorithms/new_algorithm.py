"""What a new algorithm must be able to do, in a process that has the toy of averaging/ in its list."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.network.parties import QUERY, assert_same, in_process, running, tables

import tablepuppet as tp
from tablepuppet.owner.policy import Policy


def main(folder: Path) -> None:
    """Everything that a user does with an algorithm."""
    held = tables()
    given: dict[str, Any] = {
        "label": "y",
        "model": "logistic",
        "algorithm": "averaging",
        "epochs": 5,
        "learning_rate": 0.5,
    }
    with in_process(held) as federation:
        plan = federation.explain(QUERY, **given)
        local = federation.train(QUERY, progress=False, **given)
        descent = federation.train(
            QUERY, **(given | {"algorithm": "sgd", "optimizer": "sgd", "batch_size": None}), progress=False
        )
    found: dict[str, Any] = {"plan": str(plan), "costs": [row.algorithm for row in plan.costs]}
    # The mean of clients that each stand for all is a step of gradient descent on the joined rows.
    found["same"] = bool(np.isclose(local.objective, descent.objective, rtol=1e-9))
    found["estimated"], found["counted"] = plan.cost("averaging", 5).bytes, local.traffic.bytes
    with running(folder, held) as parties:
        over_network = parties.connect().train(QUERY, **given)
        assert_same(over_network, local)
    local.save(folder / "model")
    loaded = tp.load(folder / "model")
    with in_process(held) as federation:
        predicted = federation.predict(loaded, QUERY)
        found["rows"] = len(predicted)
    found["report"] = Path(local.report(folder / "report.html")).read_text(encoding="utf-8").count("averaging")
    found["refused"] = refused(held, given)
    found["options"] = repr(tp.Averaging(learning_rate=0.5))  # type: ignore[attr-defined]
    print(json.dumps(found))


def refused(held: dict[str, pa.Table], given: dict[str, Any]) -> list[str]:
    """What the owner's policy, the job and privacy say."""
    errors = []
    orders = [held["store-eu"], held["store-us"]]
    policy = {"orders[0]": Policy(release_parameters=False)}
    cases: list[tuple[dict[str, Any], dict[str, Policy]]] = [
        ({}, policy),
        ({"privacy": {"features": {"epsilon": 1.0}}}, {}),
        ({"learning_rate": -1.0}, {}),
        ({"algorithm": "averagin"}, {}),
    ]
    for more, policies in cases:
        try:
            with tp.Federation({"orders": orders, "items": held["supplier"]}, policies=policies) as federation:
                federation.train(QUERY, progress=False, **(given | more))
        except tp.TablePuppetError as error:
            errors.append(str(error))
    return errors


if __name__ == "__main__":
    main(Path(sys.argv[1]))
