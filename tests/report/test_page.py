"""The page: whole, small, offline, without unescaped data, and its figures are the run's."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from tests.report.runs import QUERY, tables, trained

import tablepuppet as tp
from tablepuppet.cli.train import read_job
from tablepuppet.errors import JobError
from tablepuppet.formatting import number
from tablepuppet.job import make_job
from tablepuppet.report.page import distinct_names, job_toml, render, write_report
from tablepuppet.report.record import RunRecord
from tablepuppet.report.recording import record_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "input", "br"}


class Balance(HTMLParser):
    """Checks that every element is closed by its own tag, and gathers ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content needs no closing tag."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return [record_of(result) for result in trained()]


@pytest.fixture(scope="module")
def page(records: list[RunRecord]) -> str:
    return render(records)


def test_elements_are_balanced_ids_unique_and_links_lead_somewhere(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids)
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(parser.ids)


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page) == []
    assert "@import" not in page
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}


def test_what_owners_call_things_is_escaped(page: str) -> None:
    assert "<b>book</b>" not in page
    assert "i.category=&lt;b&gt;book&lt;/b&gt;" in page
    assert "shoe &amp; co" in page


def _embedded(page: str) -> list[RunRecord]:
    texts = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    return [msgspec.json.decode(text, type=RunRecord) for text in texts]


def test_every_run_can_be_traced_to_the_record_inside_the_page(page: str, records: list[RunRecord]) -> None:
    assert _embedded(page) == records


def test_the_results_are_those_of_the_runs(page: str, records: list[RunRecord]) -> None:
    shown = page[page.index('id="results"') : page.index('id="convergence"')]
    for record in records:
        for value in (record.metrics["test"]["accuracy"], record.metrics["test"]["auc"]):
            assert number(value, 5) in shown
        assert number(record.objective, 7) in shown


def test_the_job_in_the_page_is_the_job_that_ran(records: list[RunRecord]) -> None:
    shown = html.unescape(render(records[1:2]))
    for line in ('label = "returned"', 'algorithm = "admm"', "seed = 0", "epochs = 3", 'union = "consensus"'):
        assert line in shown


def test_runs_of_one_name_are_told_apart_by_what_differs(records: list[RunRecord]) -> None:
    first = records[0]
    other = msgspec.structs.replace(first, job={**first.job, "seed": 7})
    assert distinct_names([first, other]) == ["newton (seed=0)", "newton (seed=7)"]
    assert distinct_names([first, first]) == ["newton (1)", "newton (2)"]
    assert distinct_names(records) == ["newton", "admm", "sgd", "centralized"]


def test_many_coefficients_do_not_make_the_page_large(records: list[RunRecord]) -> None:
    some = records[0].coefficients
    assert some is not None
    many = {f: getattr(some, f) * 20_000 for f in ("table", "class_", "weight", "scaled")}
    many["feature"] = [f"o.column_{i}" for i in range(len(many["table"]))]
    wide = msgspec.structs.replace(records[0], coefficients=type(some)(**many))
    text = render([wide])
    assert len(text.encode()) < 3_000_000
    assert f"largest of {len(many['table']):,} are here" in text


def test_many_runs_with_long_histories_and_many_coefficients_do_not_make_the_page_large(
    records: list[RunRecord],
) -> None:
    some, epoch = records[0].coefficients, records[0].history[0]
    assert some is not None
    wide = type(some)(**{f: getattr(some, f) * 300 for f in ("table", "class_", "weight", "scaled", "feature")})
    wide = msgspec.structs.replace(wide, feature=[f"o.column_{i}" for i in range(len(wide.table))])
    history = [msgspec.structs.replace(epoch, epoch=i, rounds=i, bytes=i * 1000) for i in range(1, 1001)]
    long = msgspec.structs.replace(records[0], coefficients=wide, history=history)
    assert len(render([long] * 9).encode()) < 3_000_000


def test_a_report_of_nothing_and_a_folder_that_is_not_there_are_refused(
    tmp_path: Path, records: list[RunRecord]
) -> None:
    with pytest.raises(JobError, match="at least one run"):
        render([])
    with pytest.raises(JobError, match="cannot write the report"):
        write_report(tmp_path / "none" / "report.html", records)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_the_page_without_errors_and_nothing_sticks_out(width: int, page: str, tmp_path: Path) -> None:
    check = """
        <script>
        {
        const over = [...document.querySelectorAll("main *")].filter((e) => !e.closest(".wide, pre, svg")
          && e.getBoundingClientRect().right > innerWidth + 1);
        const chart = document.querySelector("svg.chart"), tip = document.getElementById("tip");
        chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
        const byKey = !tip.hidden && tip.textContent.startsWith("newton, epoch 1");
        chart.dispatchEvent(new PointerEvent("pointerleave"));
        const gone = tip.hidden;
        const box = chart.getBoundingClientRect();
        chart.dispatchEvent(new PointerEvent("pointermove", { clientX: box.right, clientY: box.top }));
        const byPointer = !tip.hidden && tip.textContent.includes("epoch");
        const axis = document.getElementById("axis");
        axis.value = "network-us-uk";
        axis.dispatchEvent(new Event("change"));
        const visible = [...document.querySelectorAll(".charts")].filter((e) => !e.hidden);
        const shown = visible.map((e) => e.dataset.axis || "other");
        const filter = document.getElementById("filter");
        filter.value = "items shoe";
        filter.dispatchEvent(new Event("input"));
        const left = [...document.querySelectorAll("#weights tbody tr")].filter((row) => !row.hidden).length;
        document.querySelectorAll(".sort")[2].click();
        const rows = [...document.querySelectorAll("#weights tbody tr")];
        const values = rows.map((row) => Number(row.cells[2].dataset.value));
        const sorted = values.every((value, i) => i === 0 || values[i - 1] >= value);
        parent.document.title = ["checked", innerWidth, over.length, document.documentElement.scrollWidth <= innerWidth,
          byKey, gone, byPointer, shown, left, sorted].join(" ");
        }
        </script></body>"""
    (tmp_path / "page.html").write_text(page.replace("</body>", check), encoding="utf-8")
    # A window cannot be as narrow as a phone; a frame can.
    frame = f'<iframe src="page.html" width="{width}" height="900" style="border:0"></iframe>'
    (tmp_path / "frame.html").write_text(frame, encoding="utf-8")
    process = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--allow-file-access-from-files"),
            *("--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"),
            (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "CONSOLE" not in process.stderr
    # Nothing sticks out and the page fits; a chart speaks by key and by pointer; one axis; one row; sorted.
    assert f"<title>checked {width} 0 true true true true network-us-uk,other 1 true</title>" in process.stdout


def test_the_job_file_of_the_page_is_read_back_as_the_same_job(records: list[RunRecord], tmp_path: Path) -> None:
    for record, result in zip(records, trained(), strict=True):
        path = tmp_path / "job.toml"
        path.write_text(job_toml(record.job), encoding="utf-8")
        given = dict(read_job(path).arguments)
        names = {name: given.pop(name) for name in ("label", "model", "algorithm")}
        again = make_job(result.plan.job.data.query, **names, given=given)
        assert again == result.plan.job


def test_partial_dependence_is_drawn_for_numbers_and_listed_for_texts(tmp_path: Path) -> None:
    with tp.Federation(tables()) as federation:
        result = federation.train(QUERY, label="returned", model="logistic")
        texts = ["lamp", "shoe & co", None]
        curves = {
            "i.price": federation.partial_dependence(result, feature="i.price"),
            "i.category": federation.partial_dependence(result, feature="i.category", values=texts),
        }
        text = result.report(tmp_path / "page.html", dependence=curves).read_text(encoding="utf-8")
    (record,) = _embedded(text)
    assert record.dependence[0].means["probability"] == curves["i.price"]["probability"].tolist()
    section = text.partition('<section id="dependence"')[2].partition("</section>")[0]
    assert section.count("<circle") == len(curves["i.price"])
    assert "shoe &amp; co" in section
    assert "<i>missing</i>" in section
    assert "What a feature does" not in result.report(tmp_path / "plain.html").read_text(encoding="utf-8")


def test_runs_without_test_rows_and_with_several_classes_have_a_page() -> None:
    with tp.Federation(tables()) as federation:
        untested = federation.train(QUERY, label="returned", algorithm="newton", test_fraction=0.0)
        classes = federation.train(
            QUERY.replace("o.stars", "CAST(o.stars AS VARCHAR) AS star"), label="star", model="softmax", epochs=2
        )
    first, second = (render([record_of(result)]) for result in (untested, classes))
    assert "train Accuracy" in first
    assert "test Accuracy" not in first
    assert '<button type="button" class="sort">Class</button>' in second


def test_the_epoch_whose_parameters_are_the_model_is_named_and_held_out_rows_are_called_so() -> None:
    with tp.Federation(tables()) as federation:
        result = federation.train(
            QUERY,
            label="returned",
            algorithm="sgd",
            optimizer="adam",
            learning_rate=0.5,
            batch_size=20,
            epochs=12,
            validation_fraction=0.3,
            patience=2,
        )
    assert result.epoch < len(result.history)
    page = render([record_of(result)])
    assert f"{len(result.history)} (the model is epoch {result.epoch}’s)" in page
    assert f", epoch {result.epoch}, the model" in page
    assert "rows held out for test or validation</li>" in page
    assert "test rows</li>" not in page
    assert "test rows</li>" in render([record_of(trained()[0])])
