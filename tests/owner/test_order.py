"""The order of shown rows: bits that follow from key, seed and place, and tell nothing about the place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.exchanges.keys import SendKeys
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner.row_sets import in_order, order_bits
from tablepuppet.owner.split import split
from tablepuppet.owner.tables import ClientTables
from tablepuppet.protocol.contract import Column, Contract, ScanTerms
from tablepuppet.sources.memory import open_memory


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_rows_bits_depend_on_its_place_and_not_on_who_holds_it(first: int, second: int) -> None:
    whole = order_bits(b"key", "orders", 7, 0, first + second)
    halves = [order_bits(b"key", "orders", 7, 0, first), order_bits(b"key", "orders", 7, first, second)]
    assert (np.concatenate(halves) == whole).all()


def test_bits_of_many_rows_are_those_of_few() -> None:
    whole = order_bits(b"key", "orders", 7, 3, 600_000)
    assert (whole[555_555:] == order_bits(b"key", "orders", 7, 555_558, 44_445)).all()
    assert (whole[100_000:100_005] == order_bits(b"key", "orders", 7, 100_003, 5)).all()


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9) | st.integers(2**63, 2**63 + 9), max_size=60))
def test_rows_are_sorted_by_all_of_their_bits_and_then_by_place(given_bits: list[int]) -> None:
    bits = np.array(given_bits, np.uint64)
    assert (in_order(bits) == np.argsort(bits, kind="stable")).all()


@pytest.mark.parametrize("kind", ["bits of rows", "with ties", "with equal leading bits"])
def test_many_rows_are_sorted_as_few_are(kind: str) -> None:
    bits = order_bits(b"key", "orders", 7, 0, 400_000)
    if kind == "with ties":
        bits[1::7], bits[5::11] = bits[0], bits[2] ^ np.uint64(1)
    if kind == "with equal leading bits":
        bits >>= np.uint64(20)
    assert (in_order(bits) == np.argsort(bits, kind="stable")).all()


def test_rows_that_share_all_but_their_last_bits_are_put_in_order_within_a_bucket() -> None:
    bits = order_bits(b"key", "orders", 7, 0, 400_000)
    bits[100:120] = bits[100] & ~np.uint64(31) | np.arange(20, dtype=np.uint64)[::-1]
    assert (in_order(bits) == np.argsort(bits, kind="stable")).all()


def test_another_key_seed_or_scan_gives_other_bits() -> None:
    bits = order_bits(b"key", "orders", 7, 0, 100)
    others = (order_bits(b"yek", "orders", 7, 0, 100), order_bits(b"key", "orders", 8, 0, 100))
    for other in (*others, order_bits(b"key", "cards", 7, 0, 100)):
        assert not (other == bits).any()


def test_the_order_has_no_memory_of_the_place() -> None:
    order = np.argsort(order_bits(b"key", "orders", 0, 0, 20_000))
    # Spearman's correlation of a random permutation is within ±4.5/√n but for one case in 10⁵.
    assert abs(np.corrcoef(np.arange(20_000), order)[0, 1]) < 4.5 / np.sqrt(20_000)


def shown(
    job: str = "a",
    secret: bytes = b"own",
    shared: bytes = b"all",
    seed: int = 1,
    offset: int | None = None,
    may_reveal: bool = False,
    owners: int = 1,
    filter: str | None = None,
) -> tuple[tuple[int, ...], bool]:
    """The rows of a table as keys are shown of them, and whether with the bits of their order."""
    tables = ClientTables({"t": open_memory(pa.table({"k": np.arange(40)}), "t")})
    tables.open_scan(OpenScan(job=job, scan=0, table="t", columns=["k"], filter=filter))
    scan = ScanTerms(0, "t", (Column("k", ("key",)),), filter, clients=owners)
    contract = Contract(purpose="train", asker="ann", label="y", scans=(scan,), blocks=(), keys="plain", seed=seed)
    own: Any = SimpleNamespace(secret=secret, shared_key=shared, may_reveal=may_reveal)
    own.agreed, own.scan = lambda job: contract, lambda request: tables.scan(request.job, request.scan)
    found: Any = EXCHANGES[SendKeys].handle(own, SendKeys(job=job, scan=0, offset=offset))
    return tuple(found.columns["c0"].to_pylist()), found.order is not None


def test_rows_are_shown_in_an_order_of_their_owner_and_job_or_of_the_clients_and_contract() -> None:
    alone, common = shown(), shown(offset=3)
    assert (sorted(alone[0]), alone[1], common[1]) == ([*range(40)], False, False)
    assert shown() == alone == shown(shared=b"x") == shown(seed=2)
    assert shown(offset=3) == common == shown(offset=3, secret=b"x")
    assert shown(may_reveal=True)[0] == (*range(40),)
    assert shown(offset=3, owners=2) == (common[0], True)
    filters = [shown(filter=f'"k" >= {k}', offset=o)[0] for k in (0, -1) for o in (None, 3)]
    orders = [alone[0], common[0], (*range(40),), *filters]
    orders += [shown(job="b")[0], shown(secret=b"x")[0]]
    orders += [shown(offset=3, **{name: value})[0] for name, value in (("shared", b"x"), ("seed", 2))]  # type: ignore[arg-type]
    orders.append(shown(offset=4)[0])
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("seed", range(3))
def test_in_whatever_order_rows_are_shown_all_that_is_known_of_a_row_goes_with_it(seed: int) -> None:
    """The noise of a label follows from the row's identity: under another row's, each job would draw it anew."""
    tables = ClientTables({"t": open_memory(pa.table({"k": np.arange(40) // 2, "x": np.arange(40.0)}), "t")})
    scans = []
    for job in "ab":
        tables.open_scan(OpenScan(job=job, scan=0, table="t", columns=["x"]))
        scan = tables.scan(job, 0)
        scan.is_identified = scan.is_keyed = True
        scans.append(scan)
    there, shown = scans
    shown._bases = (np.arange(40, dtype=np.uint64), np.arange(40))
    shown.shuffle(b"key", seed, 0, wants_bits=False)
    order = shown.rows().column(0).to_numpy().astype(int)
    assert sorted(order) == [*range(40)] != order.tolist()
    assert (shown.order() == order).all()
    assert (shown.row_ids() == there.row_ids()[order]).all()
    assert (shown.row_keys() == there.row_keys()[order]).all()
    assert [found.tolist() for found in shown.base_rows()] == [order.tolist()] * 2


def test_a_row_is_on_one_side_wherever_its_numbers_begin() -> None:
    assert (split(10, 0, 7, 0.5)[4:] == split(6, 4, 7, 0.5)).all()
