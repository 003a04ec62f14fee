"""Where the work over joined rows is done: threads of this process, or a Ray cluster."""

from __future__ import annotations

from typing import Any

import msgspec

from tablepuppet.errors import JobError


class Local(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name", tag="local"):
    """All joined rows in this process, walked by its threads."""


class Ray(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name", tag="ray"):
    """Joined rows made and held in pieces on a Ray cluster, with the same results bit for bit (docs/performance.md).

    `address`: a running cluster ("auto": the one on this host; None: what RAY_ADDRESS says, or one that is started for
    the run). `storage`: a folder or a URI (s3://…) that all nodes reach; pieces and the algorithm's state lie there, so
    that the loss of a node costs nothing but time. `workers`: how many pieces, by default one per CPU.
    """

    address: str | None = None
    storage: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise JobError("engine ray: workers must be at least 1, or None for one per CPU of the cluster")


Engine = Local | Ray
ENGINES = ("local", "ray")


def engine_of(given: Any) -> Engine:
    """An engine from what a user wrote: a name, an object, or a table of a TOML file.

    >>> engine_of({"name": "ray", "workers": 4})
    Ray(address=None, storage=None, workers=4)
    """
    if given is None or isinstance(given, Local | Ray):
        return given or Local()
    table = given if isinstance(given, dict) else {"name": given}
    if table.get("name") not in ENGINES:
        raise JobError(f"unknown engine {table.get('name')!r}; choose one of {', '.join(ENGINES)}, or give tp.Ray(…)")
    try:
        engine: Engine = msgspec.convert(table, Engine, strict=True)
    except msgspec.ValidationError as error:
        raise JobError(f"engine {table['name']}: {error}") from None
    return engine
