"""Files are whole or not there, and a place that cannot be written is known before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tablepuppet.errors import JobError, ModelError
from tablepuppet.output_files import as_path, check_place, write_whole


def test_a_file_replaces_the_one_before_it(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    for text in ("first", "second"):
        write_whole(target, lambda file, text=text: file.write_text(text), "the report")  # type: ignore[misc]
    assert target.read_text() == "second"
    assert list(tmp_path.iterdir()) == [target]


def test_a_writer_that_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(file: Path) -> None:
        file.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"cannot write the report to .*: No space left on device; choose another"):
        write_whole(target, fail, "the report", ModelError)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    write_whole(tmp_path / "link.html", lambda file: file.write_text("new"), "the report")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, lambda file: file.write_text("through"), "the report")
    assert os.read(reader, 20) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_what_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert check_place(tmp_path / "a" / "b" / "model", "the model", is_folder=True).name == "model"
    for path, is_folder, why in (
        (tmp_path / "none" / "report.html", False, "there is no folder"),
        (tmp_path, False, "it is a folder; name a file in it"),
        (tmp_path / "file", True, "it is a file; name a folder"),
        (tmp_path / "file" / "model", True, "there is no folder"),
        ("/proc/report.html", False, "cannot write the report"),
    ):
        with pytest.raises(JobError, match=why):
            check_place(path, "the report", is_folder=is_folder)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("given", "found"), [(None, "nothing"), ("", "an empty text"), (3, "a int")])
def test_what_is_no_path_is_said(given: object, found: str) -> None:
    with pytest.raises(ModelError, match=f"the model needs a path, for example 'model/'; {found} was given"):
        as_path(given, "the model", ModelError)
