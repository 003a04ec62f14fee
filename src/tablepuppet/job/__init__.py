"""A job and how it comes about: the data (`job.py`), from a user's words (`make.py`), the rules (`checks.py`)."""

from tablepuppet.job.checks import check_job
from tablepuppet.job.job import ARGUMENTS, PARTS, BatchSize, Job, Search, loss_options, models
from tablepuppet.job.make import class_text, make_job, search_job, usual_algorithm

__all__ = [
    "ARGUMENTS",
    "PARTS",
    "BatchSize",
    "Job",
    "Search",
    "check_job",
    "class_text",
    "loss_options",
    "make_job",
    "models",
    "search_job",
    "usual_algorithm",
]
