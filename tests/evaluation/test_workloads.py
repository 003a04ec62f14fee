"""Every workload runs from the files its owner distributes; the same rows whoever holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import duckdb
import pytest
from evaluation.figures import Study, write_figures
from evaluation.lineup import LINEUP
from evaluation.running import KEPT, Outcome, Plan, run_settings, run_workload, saved_outcomes, steps
from evaluation.sources import find
from evaluation.tables import workload_table
from evaluation.workload import Workload
from tests.evaluation import files

from evaluation import flights, mimic, movielens, walmart, yelp
from tablepuppet.errors import SourceError


@pytest.fixture(autouse=True)
def _without_a_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALUATION_ENCODER", "hashed")


def generated(folder: Path) -> Path:
    return yelp.generate(300, 8, folder)


CASES: list[tuple[Workload, Callable[[Path], Path]]] = [
    (movielens.LINEAR, files.movielens),
    (mimic.MIMIC, files.mimic),
    (yelp.ORIGINAL, files.yelp),
    (yelp.GENERATED, generated),
    (flights.FLIGHTS, files.flights),
    (walmart.WALMART, files.walmart),
]


def run(workload: Workload, make: Callable[[Path], Path], folder: Path) -> list[Outcome]:
    small = replace(workload, batch_size=128)
    return run_workload(small, make(folder / "data"), folder / "out", Plan(seeds=1, epochs=2), lambda _: None)


@pytest.mark.parametrize(
    ("workload", "make"),
    [case if case[0] is mimic.MIMIC else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
    ids=lambda case: getattr(case, "name", ""),
)
def test_a_workload_runs_from_its_original_files(
    workload: Workload, make: Callable[[Path], Path], tmp_path: Path
) -> None:
    outcomes = run(workload, make, tmp_path)
    by_name = {outcome.entry.name: outcome.runs for outcome in outcomes}
    assert list(by_name) == [entry.name for entry in LINEUP]
    pairs = [("RFL-SGD-V", "RFL-SGD"), ("RFL-Newton-V", "RFL-Newton")]
    if workload in (yelp.ORIGINAL, yelp.GENERATED):  # of many classes, a large shared block keeps newton's bound
        pairs.pop()
    for whole, split in pairs:
        for one, two in zip(by_name[whole], by_name[split], strict=True):
            for first, second in zip(one.history, two.history, strict=True):
                assert first.objective == pytest.approx(second.objective, abs=1e-9)
                assert first.metrics["test"][workload.metric] == pytest.approx(second.metrics["test"][workload.metric])
    assert saved_outcomes(workload, tmp_path / "out", Plan()) == outcomes
    text = workload_table(workload, outcomes).markdown()
    assert text.count("\n|") == len(LINEUP) + 2


@pytest.mark.slow
def test_figures_have_a_panel_per_workload_as_svg_and_png(tmp_path: Path) -> None:
    outcomes = run(walmart.WALMART, files.walmart, tmp_path)
    studies = [Study(walmart.WALMART, is_private, outcomes) for is_private in (False, True)]
    studies.append(Study(replace(walmart.WALMART, name="another"), False, outcomes))
    figures = write_figures(studies, tmp_path / "figures")
    names = ["convergence", "convergence-private", "time-v", "time-rfl"]
    assert [figure.name for figure in figures] == [f"{name}.{kind}" for name in names for kind in ("svg", "png")]
    panels = []
    for figure in figures[::2]:
        root = ElementTree.fromstring(figure.read_text(encoding="utf-8"))
        panels.append(sum(g.get("id", "").startswith("legend_") for g in root.iter("{http://www.w3.org/2000/svg}g")))
    assert panels == [4, 2, 3, 3]
    again = write_figures(studies, tmp_path / "again")
    assert [f.read_bytes() for f in again] == [f.read_bytes() for f in figures]


def test_runs_of_the_same_job_are_kept_and_others_run_anew(tmp_path: Path) -> None:
    data, plan = files.walmart(tmp_path / "data"), Plan(seeds=1, epochs=2, only=frozenset({"RFL-ADMM"}), resumes=True)
    small = replace(walmart.WALMART, batch_size=128)
    first = run_workload(small, data, tmp_path / "out", plan, lambda _: None)
    assert run_workload(small, data, tmp_path / "out", plan, lambda _: None) == first
    (central, admm), (kept, longer) = (
        first,
        run_workload(small, data, tmp_path / "out", replace(plan, epochs=3), lambda _: None),
    )
    assert kept == central
    assert len(longer.runs[0].history) == len(admm.runs[0].history) + 1


def test_the_grid_is_searched_by_the_training_objective_and_once_for_all_sgd(tmp_path: Path) -> None:
    said: list[str] = []
    plan = Plan(seeds=1, epochs=1, searches=True, only=frozenset({"VFL-SGD", "RFL-SGD"}), resumes=True)
    small = replace(walmart.WALMART, batch_size=128, learning_rates=(0.001, 0.1, 1e6))
    data = files.walmart(tmp_path / "data")
    outcomes = run_workload(small, data, tmp_path / "out", plan, said.append)
    assert [run.job["options"].get("learning_rate") for o in outcomes[1:] for run in o.runs] == [0.1, 0.1]
    assert sum("objective" in line for line in said) == 3
    said.clear()
    assert run_workload(small, data, tmp_path / "out", plan, said.append) == outcomes
    tries = [line for line in said if "objective" in line]
    assert [line for line in tries if not line.endswith(KEPT)] == [line for line in tries if "objective inf" in line]


@pytest.mark.slow
def test_settings_share_the_baseline_and_every_run_says_a_line(tmp_path: Path) -> None:
    said: list[str] = []
    some = frozenset({"RFL-SGD-V", "RFL-ADMM"})
    plain = Plan(seeds=1, epochs=1, searches=True, only=some)
    plans = [plain, replace(plain, searches=False, is_private=True)]
    small = replace(walmart.WALMART, batch_size=128, learning_rates=(0.01, 0.1), rhos=(1.0,))
    without, private = run_settings(small, files.walmart(tmp_path / "data"), tmp_path / "out", plans, said.append)
    assert len(said) == sum(steps(small, plan) for plan in plans)
    assert private[0] == without[0]  # trained once
    assert saved_outcomes(small, tmp_path / "out", plans[1]) == private
    assert sum(line.endswith(KEPT) for line in said) == 3  # that, and the two runs that the search had made
    assert private[1].runs[0].job["privacy"]["features"]


def test_a_network_is_compared_with_one_network_over_the_materialised_join(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    small, plan = replace(movielens.NEURAL, batch_size=128), Plan(seeds=1, epochs=1, only=frozenset({"RFL-SGD"}))
    data = files.movielens(tmp_path / "data")
    outcomes = run_workload(small, data, tmp_path / "out", plan, lambda _: None)
    central, *others = (outcome.runs[0] for outcome in outcomes)
    assert [block.name for block in central.data.blocks] == ["x"]
    for run in others:
        assert (run.data.train_rows, run.data.test_rows) == (central.data.train_rows, central.data.test_rows)


def test_movies_have_a_row_per_genre_and_titles_keep_their_letters(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        tables = movielens.prepare(connection, files.movielens(tmp_path / "data"), tmp_path / "out")
        rows = connection.execute(f"SELECT genre, released FROM '{tables['movies']}' WHERE movie_id = 2").fetchall()
    assert sorted(rows) == [("Action", 1962), ("Thriller", 1962), ("War", 1962)]


def test_no_hour_after_death_and_only_the_last_day_counts_as_dying(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        tables = mimic.prepare(connection, files.mimic(tmp_path / "data"), tmp_path / "out")
        dies = "count(*) FILTER (WHERE dies), min(hour) FILTER (WHERE dies), max(hour)"
        events = connection.execute(f"SELECT icustay_id, {dies} FROM '{tables['events']}' GROUP BY ALL ORDER BY 1")
        by_stay = {row[0]: row[1:] for row in events.fetchall()}
        groups = connection.execute(f"SELECT DISTINCT chronic FROM '{tables['diagnoses']}' ORDER BY 1").fetchall()
    assert by_stay[200] == (25, 15, 39)  # died 40 hours after the stay began
    assert by_stay[201] == (0, None, 47)
    assert [g for (g,) in groups] == ["acute or other", "diabetes", "heart failure", "hypertension"]


def test_reviews_of_shops_that_are_no_restaurants_are_left_out(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        tables = yelp.prepare_original(connection, files.yelp(tmp_path / "data"), tmp_path / "out")
        (rows,) = connection.execute(f"SELECT count(*) FROM '{tables['review']}'").fetchall()
        names = [r[0] for r in connection.execute(f"DESCRIBE SELECT * FROM '{tables['person']}'").fetchall()]
    assert rows == (200,)
    assert names == ["user_id", "reviews", "fans", "since"]


def test_a_folder_without_the_data_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds none of ratings\.parquet"):
        find(tmp_path, "ratings")


@pytest.mark.slow  # the accountant's
@pytest.mark.parametrize(("workload", "make"), [CASES[0], CASES[1]], ids=lambda case: getattr(case, "name", ""))
def test_a_workload_runs_with_the_papers_privacy(
    workload: Workload, make: Callable[[Path], Path], tmp_path: Path
) -> None:
    small, plan = replace(workload, batch_size=128), Plan(seeds=1, epochs=1, is_private=True)
    outcomes = run_workload(small, make(tmp_path / "data"), tmp_path / "out", plan, lambda _: None)
    assert [o.entry.name for o in outcomes] == ["Centralised", "RFL-SGD-V", "RFL-ADMM-V", "RFL-SGD", "RFL-ADMM"]
    assert all(o.runs[0].job["privacy"]["features"]["epsilon"] == 1.0 for o in outcomes[1:])
