"""The joined rows of a job, which live as long as a run: gathered once more, for tests that look into them."""

from __future__ import annotations

import tablepuppet as tp
from tablepuppet.job import Job
from tablepuppet.plan.prepare import Prepared
from tablepuppet.train import Session, new_job_id, prepare_job
from tablepuppet.transport.link import Link


def joined_rows(federation: tp.Federation, job: Job) -> Prepared:
    """What a run of the job would begin with."""
    return prepare_job(job, Session(federation._tables, Link(federation._transport), new_job_id()))
