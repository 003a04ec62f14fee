"""Files that cannot be read are refused, each with its own reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.object_store import s3_address, web_address

from tablepuppet.errors import SourceError
from tablepuppet.sources.source import Source, open_source, source
from tablepuppet.transport.certs import create_authority, issue


def refused(value: object) -> str:
    with pytest.raises(SourceError) as error:
        open_source(value, "items")
    assert str(error.value).startswith("table items")
    return str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path}/x.parquet; check" in refused(tmp_path / "x.parquet")
    assert f"there is no file ~/{tmp_path.name}.csv; check" in refused(f"~/{tmp_path.name}.csv")
    assert f"there is no file x.parquet (looked in {Path.cwd()}); check" in refused("x.parquet")
    assert "no file matches" in refused(str(tmp_path / "*.parquet"))
    assert "holds no Parquet file" in refused(tmp_path)


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.arrow"])
@pytest.mark.parametrize("content", [b"", b"not what the ending says" * 10])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"{tmp_path}/{name} is not a readable" in refused(tmp_path / name)


def test_an_unknown_ending_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "x.xlsx").write_text("x")
    assert "Parquet (.parquet, " in refused(tmp_path / "x.xlsx")


def test_a_glob_over_files_of_different_kinds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    assert "not of a known kind" in refused(str(tmp_path / "x.*"))


def test_a_table_argument_for_a_file_is_refused(tmp_path: Path) -> None:
    assert "leave the argument out" in refused(source(tmp_path / "x.parquet", table="items"))


def test_parquet_without_columns_or_with_two_of_one_name_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "none.parquet")
    pq.write_table(pa.table([[1], [2]], names=["a", "A"]), tmp_path / "twice.parquet")
    assert "has no columns" in refused(tmp_path / "none.parquet")
    assert "columns 'a' and 'A', which SQL does not tell apart" in refused(tmp_path / "twice.parquet")


def test_parquet_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "1.parquet")
    with pytest.raises(SourceError, match="table items"):
        open_source(tmp_path, "items").read(["a"], None)


def test_a_partitioned_folder_has_its_partition_as_a_column(tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"a": [year]}), tmp_path / f"year={year}" / "0.parquet")
    opened = open_source(tmp_path, "items")
    assert [column.name for column in opened.describe()] == ["a", "year"]
    assert opened.read(["a"], "year = 2024").to_pydict() == {"c0": [2024]}


def test_a_file_name_with_quotes_and_magic_letters_is_just_a_name(tmp_path: Path) -> None:
    path = tmp_path / "it's [1] file.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    assert open_source(path, "items").read(["a"], None).num_rows == 1


def test_lists_of_one_length_in_parquet_are_vectors(tmp_path: Path) -> None:
    fixed = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    ragged = pa.array([[1.0], None, [3.0, 4.0]], pa.list_(pa.float64()))
    pq.write_table(
        pa.table({"fixed": fixed, "ragged": ragged, "half": fixed.cast(pa.list_(pa.float16(), 2))}),
        tmp_path / "v.parquet",
    )
    opened = open_source(tmp_path / "v.parquet", "items")
    assert [(c.kind, c.size) for c in opened.describe()] == [("vector", 2), ("other", 0), ("vector", 2)]
    # No filter and no expression decides: their answer would tell of rows before a contract is agreed to.
    for asked, where in (
        ('"ragged"', "len(ragged) = 1"),
        ('"ragged"', "false"),
        ("CAST([ragged[1]] AS FLOAT[])", None),
    ):
        assert [(c.kind, c.size) for c in opened.describe_scan([asked], where)] == [("other", 0)]
    assert [(c.kind, c.size) for c in opened.describe_scan(['("fixed")'], "false")] == [("vector", 2)]


# -- CSV -----------------------------------------------------------------------------------


def csv(folder: Path, text: str, name: str = "items.csv") -> Source:
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return open_source(folder / name, "items")


def test_types_of_a_csv_are_those_of_all_its_rows(tmp_path: Path) -> None:
    late = "\n".join(["1"] * 30_000)
    opened = csv(tmp_path, f"a\n{late}\nx\n")
    assert opened.describe()[0].kind == "string"


@pytest.mark.parametrize("name", ["items.csv", "items.tsv", "items.csv.gz"])
def test_separators_quotes_and_gaps_are_understood(tmp_path: Path, name: str) -> None:
    text = 'id,note,price\n1,"a, b\nc",0.5\n2,,\n'
    opened = csv(tmp_path, text if "csv" in name else text.replace(",", "\t"), name)
    read = opened.read(["id", "note", "price"], None)
    assert read["c0"].to_pylist() == [1, 2]
    assert read["c2"].to_pylist() == [0.5, None]
    assert read["c1"].null_count == 1


def test_a_first_line_of_text_above_text_is_still_the_names(tmp_path: Path) -> None:
    assert [c.name for c in csv(tmp_path, "town,name\nx,y\n").describe()] == ["town", "name"]


def test_a_csv_without_rows_has_columns_of_text(tmp_path: Path) -> None:
    opened = csv(tmp_path, "town,name\n")
    assert [c.kind for c in opened.describe()] == ["string", "string"]
    assert opened.read(["town"], None).num_rows == 0


def test_an_unusable_csv_is_refused(tmp_path: Path) -> None:
    for text, reason in [
        ("", "is empty"),
        ("a,a\n1,2\n", "SQL does not tell apart"),
        ("a,\n1,2\n", "column without a name"),
        ("a,b\n1,2\n3\n", "do not all have as many fields"),
        ("a,b\n" + "1,2\n" * 50_000 + "1,2,3\n", "x.csv"),
        ("a,b\n1,caf\xe9\n", "not in UTF-8; convert it first"),
    ]:
        (tmp_path / "x.csv").write_text(text, encoding="latin-1")
        assert reason in refused(tmp_path / "x.csv")


def test_the_order_of_rows_is_that_of_the_file_whatever_its_length(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).permutation(200_000)
    opened = csv(tmp_path, "a\n" + "\n".join(map(str, numbers)) + "\n")
    assert opened.read(["a"], "a % 3 = 0")["c0"].to_numpy().tolist() == numbers[numbers % 3 == 0].tolist()


def test_a_file_that_lies_elsewhere_is_fetched_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text("a\n1\n", encoding="utf-8")
    opened = open_source(f"{web_address(tmp_path)}/items.csv", "items")
    assert opened.read(["a"], None)["c0"].to_pylist() == [1]
    file.write_text("a\n22\n33\n", encoding="utf-8")
    with pytest.raises(SourceError, match="table items has changed since the job began"):
        opened.read(["a"], None)
    opened.describe()  # another job begins
    assert opened.read(["a"], None)["c0"].to_pylist() == [22, 33]
    file.unlink()
    with pytest.raises(SourceError, match="table items"):
        opened.describe()
    opened.close()


def test_partitions_of_a_folder_in_a_store_are_columns(tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / "bucket" / "items" / f"year={year}").mkdir(parents=True)
        pq.write_table(pa.table({"a": [year]}), tmp_path / "bucket" / "items" / f"year={year}" / "0.parquet")
    opened = open_source(s3_address(tmp_path).format("bucket/items"), "items")
    assert opened.read(["a", "year"], "year >= 2023").to_pydict() == {"c0": [2023, 2024], "c1": [2023, 2024]}
    opened.close()


def test_a_web_server_may_want_a_password_and_may_not_know_head(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("a\n1\n", encoding="utf-8")
    address = web_address(tmp_path, password="ann:it's", methods=("GET",))
    opened = open_source(address.replace("://", "://ann:it%27s@") + "/items.csv?page=1", "items")
    assert opened.read(["a"], None)["c0"].to_pylist() == [1]
    opened.close()
    assert "the server answers 401" in refused(f"{address}/items.csv")


def test_a_file_that_is_cut_short_on_its_way_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("a\n1\n2\n3\n", encoding="utf-8")
    assert "cannot be fetched" in refused(f"{web_address(tmp_path, lost=4)}/items.csv")


def test_a_certificate_that_nobody_vouches_for_names_where_to_say_who_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "items.csv").write_text("a\n1\n", encoding="utf-8")
    create_authority(tmp_path / "certs")
    certificate = issue(tmp_path / "certs", "server", "server", hosts=["127.0.0.1"])
    address = web_address(tmp_path, certificate=certificate)
    message = refused(f"{address}/items.csv")
    assert "its certificate is not trusted" in message
    assert "SSL_CERT_FILE" in message
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certs" / "ca.pem"))
    opened = open_source(f"{address}/items.csv", "items")
    assert opened.read(["a"], None)["c0"].to_pylist() == [1]
    opened.close()


def test_a_store_that_refuses_is_named_without_its_credentials(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with pytest.raises(SourceError, match=r"s3://bucket/items cannot be fetched \(there is no such file\)") as refused:
        open_source(s3_address(tmp_path).format("bucket/items"), "items")
    assert "secret" not in str(refused.value)
    with pytest.raises(SourceError, match=r"the server answers 404"):
        open_source(f"{web_address(tmp_path)}/nothing.csv", "items")
    with pytest.raises(SourceError, match="needs the environment variable NOT_SET"):
        open_source("s3://ann:${NOT_SET}@bucket/items", "items")


def test_a_database_without_its_driver_names_the_package() -> None:
    with pytest.raises(SourceError, match="pip install adbc-driver-snowflake"):
        open_source(source("snowflake://ann:secret@account/db", table="items"), "items")
