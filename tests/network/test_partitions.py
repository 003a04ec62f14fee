"""Tables that the same clients share: the federation file of processes says by which column."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from tests.network.parties import SECRET, Parties, tables

import tablepuppet as tp
from tablepuppet.network.settings import read_federation

QUERY = """SELECT i.price, p.pairs, p.most, i.kind = 'kind 1' AS y FROM items i JOIN (
    SELECT a.item, count(*) AS pairs, max(a.x - b.x) AS most FROM orders a JOIN orders b ON a.item = b.item
    GROUP BY a.item) p ON p.item = i.item"""


def test_clients_join_their_own_rows_on_what_the_file_says_and_on_nothing_else(tmp_path: Path) -> None:
    held = tables(200)
    stores = ("store-eu", "store-us")
    for rest, store in enumerate(stores):
        held[store] = held[store].filter(pc.equal(pc.bit_wise_and(held[store]["item"], 1), rest))
    parties = Parties(tmp_path)
    parties.write(held)
    said = parties.federation.read_text(encoding="utf-8") + '[partitioned_by]\norders = ["item"]\n'
    parties.federation.write_text(said, encoding="utf-8")
    parties.start()
    try:
        parties.await_clients()
        found = parties.connect().train(QUERY, label="y", test_fraction=0.0)
    finally:
        parties.stop()
    given = {"orders": [held[store] for store in stores], "items": held["supplier"]}
    with tp.Federation(given, key=SECRET, partitioned_by={"orders": ["item"]}) as federation:
        expected = federation.train(QUERY, label="y", test_fraction=0.0)
    assert found.objective == expected.objective
    with tp.Federation(given) as federation, pytest.raises(tp.TablePuppetError, match="partitioned by"):
        federation.explain(QUERY, label="y")
    parties.federation.write_text(said.replace('orders = ["item"]', 'order = ["item"]'), encoding="utf-8")
    with pytest.raises(tp.TablePuppetError, match="names 'order', which \\[owners\\] does not"):
        read_federation(parties.federation)


@pytest.mark.parametrize(
    "setting",
    ["wait = -1.0", "turn = -1.0", "share = -0.1", "heartbeat = 0.0", "limit = 0", "memory = 0", "compute = -1.0"],
)
def test_a_setting_that_no_server_can_keep_is_refused(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(f'[server]\naddress = "grpc+tls://host:1"\n{setting}\n[owners]\nt = "a"\n')
    with pytest.raises(
        tp.TablePuppetError, match=rf"cannot be read: Expected `\w+` .*`\$.server.{setting.split()[0]}`"
    ):
        read_federation(file)
