"""Where a plan's joined rows are walked over: here, or on the cluster that the job names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tablepuppet.mapping.cluster import ClusterRows, on_cluster
from tablepuppet.mapping.engines import Local
from tablepuppet.mapping.joined import JoinedRows
from tablepuppet.plan.plan import Plan


class Sides(NamedTuple):
    """The joined rows of a run."""

    train: JoinedRows | ClusterRows
    test: JoinedRows | ClusterRows
    validation: JoinedRows | ClusterRows


@contextmanager
def joined_rows(plan: Plan) -> Iterator[Sides]:
    """The plan's joined rows, where the job's engine has them."""
    mapping, engine = plan.training_mapping, plan.job.engine
    if isinstance(engine, Local):
        yield Sides(mapping.train, mapping.test, mapping.validation)
        return
    own = {"train": mapping.train, "test": mapping.test, "validation": mapping.validation}
    with on_cluster(engine, own) as sides:
        yield Sides(**sides)
