"""The checks of pages find long sentences, worn words, decisions inside sentences and misspelt words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import check_spelling
from tools.check_prose import LONG, find_breaches, find_decisions_in_sentences, main, read_sentences


def test_code_tables_headings_and_short_items_are_no_sentences() -> None:
    page = "# A heading of four words\n\n| a table | of words |\n\n- a short item\n\n```sh\nsome code here now\n```\n"
    assert list(read_sentences("a.md", page)) == []


def test_a_sentence_ends_at_its_stop_and_an_item_is_a_paragraph() -> None:
    page = (
        "Rows meet by keys. Nothing else meets.\n\n1. Train the model on all rows\n2. Predict the other rows with it\n"
    )
    assert [s.words for s in read_sentences("a.md", page)] == [4, 3, 6, 6]


@pytest.mark.parametrize(("words", "is_long"), [(LONG, False), (LONG + 1, True)])
def test_a_long_sentence_has_more_words_than_the_limit(words: int, is_long: bool) -> None:
    (sentence,) = read_sentences("a.md", " ".join(["word"] * words) + ".")
    assert sentence.is_long == is_long


def test_worn_words_are_found() -> None:
    worn, plain = read_sentences("a.md", "It tells the server what is there. The server learns the count.")
    assert worn.is_worn
    assert not plain.is_worn


def test_a_decision_stands_in_a_line_of_background_alone() -> None:
    link = "[0001](decisions/0001-a.md)"
    assert find_decisions_in_sentences(f"Background: decisions {link}.\n\nKeys are tokens.") == []
    assert find_decisions_in_sentences(f"Keys are tokens ({link}).") == [f"Keys are tokens ({link})."]
    assert find_decisions_in_sentences(f"| a | {link} |") == [f"| a | {link} |"]


def test_pages_above_a_limit_are_breaches() -> None:
    short = list(read_sentences("a.md", "Rows meet by keys. " * 60))
    long = list(read_sentences("a.md", " ".join(["word"] * 36) + "."))
    assert find_breaches(short, []) == []
    assert len(find_breaches(long, ["a.md: a link"])) == 3  # share, median, link


def test_the_command_ends_with_1_and_names_the_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("Keys are equal. A " + "very " * 40 + "long one.\n", encoding="utf-8")
    assert main([str(page)]) == 1
    assert "page.md: 43 words" in capsys.readouterr().out


def test_words_of_neither_list_are_found_and_code_is_not_read() -> None:
    known = check_spelling.read_words()
    page = "The server's tokns meet, as `cfg_x` and TLS do; [keys](htps.md) were unmatched.\n\n```sh\nxyzzy\n```\n"
    assert check_spelling.find_unknown(page, known) == ["tokns"]


@pytest.mark.parametrize("word", ["behavior", "organization", "neighbor", "center"])
def test_american_spelling_is_not_known(word: str) -> None:
    assert check_spelling.find_unknown(f"The {word} of it", check_spelling.read_words()) == [word]


def test_a_misspelt_page_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("A tabel has rows.\n", encoding="utf-8")
    assert check_spelling.main([str(page)]) == 1
    assert "tabel: page.md" in capsys.readouterr().out
    page.write_text("A table has rows.\n", encoding="utf-8")
    assert check_spelling.main([str(page)]) == 0


def test_the_pages_read_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out


def test_the_pages_are_spelt_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_spelling.main([]) == 0, capsys.readouterr().out
