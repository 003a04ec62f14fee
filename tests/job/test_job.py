"""A job's parts, and the flat names under which users give them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tablepuppet.errors import JobError
from tablepuppet.job.checks import check_job
from tablepuppet.job.job import ARGUMENTS, PARTS, Job, JobData, job_of
from tablepuppet.job.make import make_job

QUERY = "SELECT x, y FROM t"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"l2": {"t": 0.1}, "test_where": "x > 3", "weight": "w", "seed": 7},
        {"head": "factor", "rank": 3, "ids": ("x",), "algorithm": "als"},
        {"model": "mlp", "hidden": (4, 2), "algorithm": "sgd", "engine": {"name": "ray", "workers": 2}},
        {"privacy": {"label": {"epsilon": 1.0}}, "class_weight": {"0": 1.0, "1": 2.0}},
    ],
)
def test_a_job_follows_from_its_arguments(given: dict[str, Any]) -> None:
    model, algorithm = given.get("model", "auto"), given.get("algorithm")
    options = {name: value for name, value in given.items() if name not in ("model", "algorithm")}
    job = make_job(QUERY, label="y", model=model, algorithm=algorithm, given=options)
    assert job_of(job.arguments()) == job


def test_every_field_of_every_part_has_one_argument() -> None:
    fields = [(part, field) for part, kind in PARTS.items() for field in kind.__struct_fields__]
    own = [("", field) for field in Job.__struct_fields__ if field not in PARTS]
    assert sorted(ARGUMENTS.values()) == sorted([*fields, *own])


@pytest.mark.parametrize("name", ["label", "model", "test_fraction", "seed"])
def test_an_argument_is_replaced_in_its_part_and_nowhere_else(name: str) -> None:
    job = Job(data=JobData(query=QUERY, label="y"))
    value: Any = {"label": "z", "model": "linear", "test_fraction": 0.5, "seed": 3}[name]
    changed = job.replace(**{name: value})
    assert changed.arguments() == job.arguments() | {name: value}
    assert changed.get(name) == value


def test_a_wrong_type_is_told_by_the_argument_s_name() -> None:
    with pytest.raises(JobError, match=r"^l1: expected .*float"):
        job_of({"query": QUERY, "label": "y", "l1": "much"})
    with pytest.raises(JobError, match=r"^activation must be one of .*, not 'square'"):
        job_of({"query": QUERY, "label": "y", "activation": "square"})


def test_words_of_other_libraries_lead_to_ours() -> None:
    with pytest.raises(JobError, match="did you mean 'boosted'"):
        make_job("SELECT 1", label="y", model="random_forest", algorithm=None, given={})
    with pytest.raises(JobError, match="did you mean 'trees'"):
        make_job("SELECT 1", label="y", model="boosted", algorithm=None, given={"n_estimators": 10})


@pytest.mark.parametrize(("name", "value"), [("epsilon", -1.0), ("delta", 2.0), ("cap", 0), ("fits", 0), ("ahead", -1)])
def test_privacy_of_a_job_from_elsewhere_keeps_its_bounds(name: str, value: float) -> None:
    given = {"splits": "random", "privacy": {"analyst": {"epsilon": 1.0}}}
    job = make_job(QUERY, label="y", model="boosted", algorithm=None, given=given)
    check_job(job)
    assert job.privacy.analyst is not None
    forged = msgspec.structs.replace(job.privacy.analyst, **{name: value})
    with pytest.raises(JobError, match=rf"privacy\.analyst\.{name} must be "):
        check_job(job.replace(privacy=msgspec.structs.replace(job.privacy, analyst=forged)))
