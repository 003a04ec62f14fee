"""A job and how it comes about: the data (`job.py`), from a user's words (`make.py`), the rules (`checks.py`)."""

from tablepuppet.job.checks import check_job
from tablepuppet.job.job import ARGUMENTS, PARTS, BatchSize, Job, loss_options
from tablepuppet.job.make import make_job, search_job

__all__ = ["ARGUMENTS", "PARTS", "BatchSize", "Job", "check_job", "loss_options", "make_job", "search_job"]
