"""A plan for people and machines: as text, like a database's EXPLAIN; the same for notebooks; as JSON.

In: a Plan and, after a run, the meter's counts, which are shown next to the estimates. This file only lays numbers out:
costs.py and knowledge.py compute them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from tablepuppet.algorithms.registry import own_model
from tablepuppet.algorithms.shape import BlockShape
from tablepuppet.formatting import columns, details, fragment, groups, lines_of, plural, seconds, size
from tablepuppet.job.job import JobModel, Local
from tablepuppet.plan.costs import RUN_EPOCHS, Cost, describe_walk
from tablepuppet.plan.history import describe_histories
from tablepuppet.transport.meter import Account

if TYPE_CHECKING:
    from tablepuppet.plan.plan import Gain, Plan

NETWORKS = ("us-uk", "us-us")
_CLIENTS_SHOWN = 6
_LINE = 100


def render(plan: Plan, counted: Account | None = None, epochs: int | None = None) -> str:
    """The plan as text; `counted` is the meter's account of a run of `epochs` epochs."""
    sections = _sections(plan)
    if counted is not None:
        sections.insert(4, _comparison(plan, counted, epochs or plan.job.epochs))
    return "\n\n".join("\n".join(section) for section in sections)


def plan_html(plan: Plan) -> str:
    """One fragment: the sections of the text, those of sentences on demand."""
    (title, *notes), tree, rows, costs, *others = _sections(plan)
    shown = [lines_of(section) for section in (notes, tree, rows, costs)]
    return fragment(title, *shown, *(details(head, lines_of(rest)) for head, *rest in others))


def _sections(plan: Plan) -> list[list[str]]:
    """The title, the operators, rows, costs, and sentences."""
    advice = [f"Advice: {plan.advice.algorithm}", *_wrap(plan.advice.why, *plan.remarks, further="  ")]
    sections = [_title(plan), _tree(plan), _rows(plan), _costs(plan), advice]
    sections += [*([_gains(plan.gains)] if plan.gains else []), _knowledge(plan)]
    if plan.ledger.releases:  # ε with unit, observer, δ and sampling
        sections.append(["Privacy that the job spends, if every epoch is run", *_wrap(*plan.ledger.lines())])
    if plan.notes:
        sections.append(["For an analyst, with noisy sizes", *_wrap(*plan.notes)])
    return sections


def _wrap(*texts: str, first: str = "  ", further: str = "    ") -> list[str]:
    """Texts in lines, with an indent before the first line of each, and before further ones."""
    return [line for text in texts for line in wrap(text, _LINE, initial_indent=first, subsequent_indent=further)]


def _title(plan: Plan) -> list[str]:
    job, label = plan.job, plan.mapping.label
    kind = f"{len(label.classes)} classes" if label.classes else "a number"
    named = {"loss": job.model.loss} if job.model.loss is not None and job.model.loss_class is not None else {}
    chosen = ", ".join(f"{name} {value}" for name, value in (named | job.model.loss_options).items())
    model = f"{job.model.name} ({chosen})" if chosen else job.model.name
    usual = f"model {model}, {_penalties(job.model, plan.shape.joined)}, at most {plural(job.epochs, 'epoch')}"
    what = plan.algorithm.title(job.options) or usual
    title = [f"Train {plan.mapping.bound.label} ({kind}) by {job.algorithm}: {what}"]
    steps = plan.algorithm.steps(job.options, _batches(plan), plan.unit)
    if steps is not None:
        title.append(f"  {steps}")
    if job.data.has_weights:
        weighed = [] if job.data.weight is None else [f"rows by {job.data.weight}"]
        if job.data.class_weight is not None:
            weighed.append("classes alike" if job.data.class_weight == "balanced" else "classes")
        title.append(f"  weighs {' and '.join(weighed)}, on average 1")
    if job.data.negatives:
        seen, drawn = plan.mapping.seen_rows, plan.mapping.label.negatives
        title.append(
            f"  {plural(seen, 'joined row')} as what was seen, and beside them {plural(drawn, 'pair')} of rows that "
            f"did not meet, {job.data.negatives} for each, drawn by the server"
        )
    if job.patience is not None:
        title.append(
            f"  stops after {plural(job.patience, 'epoch')} without a better validation {job.monitor}, and keeps the "
            "best epoch's parameters"
        )
    title += _wrap(describe_walk(plan))
    placement = plan.mapping.placement
    if placement is not None:
        how = "each makes its own joined rows" if placement.is_joined_there else "joined here first, by one machine"
        title.append(
            f"  engine ray: {plural(placement.partitions, 'partition')} of the joined table with workers; {how}"
        )
    elif job.engine != Local():
        shares = (
            "workers share a walk's frequencies" if plan.shape.frequencies else "the server makes each walk by itself"
        )
        title.append(f"  engine ray: {shares}")
    if job.wire != "float64":
        floats, _, packing = job.wire.partition("+")
        halved = ["numbers travel as float32, with seven digits"] if floats == "float32" else []
        packed = [f"messages are compressed by {packing}, which the estimates leave out"] if packing else []
        title.append(f"  wire {job.wire}: {', '.join([*halved, *packed])}")
    return title


def _penalties(model: JobModel, rows: int) -> str:
    if isinstance(model.l2, dict):
        words = ["l2 of " + ", ".join(f"{table} {value:g}" for table, value in model.l2.items())]
    else:
        words = [f"l2 {model.l2:.3g}"]
        if model.l2 == 1 / max(1, rows):
            words[0] += " (1 / joined rows)"
    if model.l2_by_rows:
        words[0] = f"{words[0]} + " if model.l2 else "l2 "
        words[0] += f"{model.l2_by_rows:g} / joined rows"
    if model.l1:
        words.insert(0, f"l1 {model.l1:g}")
    if model.signs:
        words.append(f"signs of {', '.join(model.signs)}")
    return ", ".join(words)


def _batches(plan: Plan) -> str:
    """How many steps an epoch has, and on how many rows."""
    rows, size = plan.shape.joined, plan.batch_size
    batches = ceil(rows / min(size or rows, rows)) if plan.algorithm.uses_batches else 1
    chosen = " (chosen from the number of rows)" if plan.job.batch_size == "auto" and batches > 1 else ""
    what = "all rows" if batches == 1 else f"batches of {size:,} joined rows{chosen}"
    return f"{plural(batches, 'step')} an epoch on {what}"


def _tree(plan: Plan) -> list[str]:
    """LoJ ← LoU per block ← clients."""
    shape = plan.shape
    validation = f", {shape.validation_joined:,} to validate on" if shape.validation_joined else ""
    lines = [
        f"join (LoJ) of {plural(len(shape.blocks), 'block')}: {plural(plan.mapping.joined_rows, 'joined row')}, "
        f"{shape.joined:,} to train on{validation} and {shape.test_joined:,} to test on"
    ]
    for block in shape.blocks:
        is_last = block is shape.blocks[-1]
        lines.append(("└─ " if is_last else "├─ ") + _block(block, shape.has_widths))
        if block.is_split:
            lines += [("   " if is_last else "│  ") + line for line in _clients(block)]
    return lines


def _block(block: BlockShape, has_widths: bool) -> str:
    width = f"{plural(block.features, 'feature')} in {plural(block.width, 'column')}"
    what = plural(block.features, "feature") if not has_widths else width
    if block.is_split:
        return f"{block.name}: union (LoU) of {len(block.parts)} clients of {block.table}, {block.rows:,} rows, {what}"
    return f"{block.name}: client {block.parts[0].client if block.parts else '–'}, {plural(block.rows, 'row')}, {what}"


def _clients(block: BlockShape) -> Iterator[str]:
    shown = block.parts if len(block.parts) <= _CLIENTS_SHOWN else block.parts[: _CLIENTS_SHOWN - 1]
    rest = block.parts[len(shown) :]
    lines = [f"client {part.client}, {plural(part.rows, 'row')}" for part in shown]
    if rest:
        lines.append(f"{len(rest)} more clients, {plural(sum(part.rows for part in rest), 'row')}")
    for i, line in enumerate(lines):
        yield ("└─ " if i == len(lines) - 1 else "├─ ") + line


def _rows(plan: Plan) -> list[str]:
    table = [["alias", "table", "owners", "rows", "matched", "orphans", "joined rows per row"]]
    for fit in plan.mapping.fits:
        fan = f"{fit.mean_fan_out:,.1f} on average, {fit.max_fan_out:,} at most"
        if fit.is_anti:
            fan = "none: rows with a match here are left out"
        if fit.is_semi:
            fan = "none: rows with a match here are kept, once"
        counts = (fit.clients, fit.rows, fit.matched, fit.orphans)
        table.append([fit.alias, fit.table, *(f"{count:,}" for count in counts), fan])
    lines, own = ["Rows and how they match", *columns(table)], own_model(plan.job.model.spec)
    for block in plan.shape.blocks:
        if block.unmatched:
            rows = plural(block.unmatched, "training row")
            who = f"LEFT JOIN: {rows} without a partner in {block.name}"
            if own is not None:
                lines.append(f"  {who} {own.unmatched}")
                continue
            weight = f"on the original scale that is a weight of its own, {block.name} IS NOT NULL"
            lines += _wrap(f"{who} stay, with zeros in its encoded columns; {weight}")
    return lines + _wrap(*describe_histories(plan.mapping), *(f"Note: {leak}" for leak in plan.leaks))


def _costs(plan: Plan) -> list[str]:
    """One line per algorithm: an epoch, a run, memory. No two trees are alike: of these, the run alone."""
    names = [[""]]
    one = [["rounds", "bytes", "CPU", "US-UK", "US-US"]]
    run = [["US-UK", "US-US"]]
    memory = [["server", "client"]]
    for row in plan.costs:
        names.append([("▸ " if row.algorithm == plan.job.algorithm else "  ") + row.algorithm])
        shown = row.run if plan.algorithm.own_model else row.epoch
        cpu = "–" if shown.cpu is None else seconds(shown.cpu)  # of a network that nobody knows
        one.append([shown.rounds_text, size(shown.bytes), cpu, *_times(shown)])
        run.append(_times(row.run))
        memory.append([size(row.server_memory), size(row.client_memory)])
    unit = plan.algorithm.epoch
    epochs = plural(plan.algorithm.run_epochs(plan.job.options, RUN_EPOCHS), unit)
    titled = [(epochs, one)] if plan.algorithm.own_model else [(f"one {unit}", one), (epochs, run)]
    titles, tables = zip(("", names), *titled, ("memory", memory), strict=True)
    return ["Estimated cost (▸ is this job)", *groups(list(titles), list(tables))]


def _times(of: Cost | Account) -> list[str]:
    return [seconds(of.seconds(name)) for name in NETWORKS]


def _comparison(plan: Plan, counted: Account, epochs: int) -> list[str]:
    """The estimate for as many epochs as were run, and the meter's counts."""
    estimate = plan.cost(plan.job.algorithm, epochs)
    given: list[tuple[str, Cost | Account]] = [("estimated", estimate), ("counted", counted)]
    table = [["", "rounds", "arrays down", "arrays up", "all bytes", "US-UK", "US-US"]]
    for name, one in given:
        sizes = [size(count) for count in (one.payload_down, one.payload_up, one.bytes)]
        rounds = one.rounds_text if isinstance(one, Cost) else f"{one.rounds:,}"
        table.append([name, rounds, *sizes, *_times(one)])
    unit = plan.algorithm.epoch
    return [f"Estimated and counted: {plan.job.algorithm}, {plural(epochs, unit)}", *columns(table)]


def _knowledge(plan: Plan) -> list[str]:
    lines = ["Who learns what"]
    for insight in plan.insights:
        lines.append(f"  {insight.party}")
        for learns in insight.learns:
            lines += _wrap(learns, first="    · ", further="      ")
    lines += ["", *_exposure(plan)]
    return lines


def _exposure(plan: Plan) -> Sequence[str]:
    own = own_model(plan.job.model.spec)
    usual = "Exposure: numbers that the server may see of one row, against the row's columns"
    lines = [usual if own is None else own.exposure_title]
    for exposure in plan.exposures:
        bits = "" if own is not None else f" (up to {64 * exposure.numbers:,} bits)"
        few = "fewer than its features, and yet enough for columns with few values"
        verdict = "enough to reconstruct it" if exposure.reconstructs else few
        lines.append(f"  {exposure.block}: {exposure.numbers:,}{bits} of {exposure.width:,}, {verdict}")
    return lines


def _gains(gains: Sequence[Gain]) -> list[str]:
    rows = [["model", "of the residual", "tables", "rounds", "bytes"]]
    for gain in gains:
        share = f"{gain.share:.0%}" if gain.share else "–" if gain.model == gains[0].model else "nothing found"
        rows.append([gain.model, share, " and ".join(gain.blocks), f"{gain.rounds:,}", size(gain.bytes)])
    return ["Interactions between tables, estimated from the residuals of a trained sum", *columns(rows)]


def document(plan: Plan) -> dict[str, Any]:
    """Operators, rows, costs, memory, advice, who learns what: names, counts and estimates, unrounded."""
    shape, job = plan.shape, plan.job
    return {
        "label": plan.mapping.bound.label,
        "model": job.model.name,
        "algorithm": job.algorithm,
        "epochs": job.epochs,
        "batch_size": plan.batch_size if plan.algorithm.uses_batches else None,
        "joined_rows": plan.mapping.joined_rows,
        "train_rows": shape.joined,
        "validation_rows": shape.validation_joined,
        "test_rows": shape.test_joined,
        "blocks": [
            {
                "name": block.name,
                "table": block.table,
                "rows": block.rows,
                "features": block.features,
                "columns": block.width if shape.has_widths else None,
                "clients": [{"client": part.client, "rows": part.rows} for part in block.parts],
            }
            for block in shape.blocks
        ],
        "tables": [asdict(fit) | {"orphans": fit.orphans} for fit in plan.mapping.fits],
        "walk": plan.mapping.walk,
        "costs": [
            {
                "algorithm": row.algorithm,
                "epoch": _cost(row.epoch),
                "run": _cost(row.run) | {"epochs": row.run.epochs},
                "server_memory": row.server_memory,
                "client_memory": row.client_memory,
            }
            for row in plan.costs
        ],
        "advice": asdict(plan.advice),
        "gains": [asdict(gain) for gain in plan.gains],
        "who_learns_what": [asdict(insight) for insight in plan.insights],
        "privacy": plan.ledger.to_dict(),
        "histories": describe_histories(plan.mapping),
        "leaks": plan.leaks,
        "exposure": [asdict(e) | {"reconstructs": e.reconstructs} for e in plan.exposures],
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "rounds": cost.rounds,
        "round_range": list(cost.round_range),
        "bytes": round(cost.bytes),
        "payload_down": round(cost.payload_down),
        "payload_up": round(cost.payload_up),
        "cpu": cost.cpu,
        "seconds": {name: cost.seconds(name) for name in NETWORKS},
    }
