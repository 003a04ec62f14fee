"""An analyst budget over mutual TLS: noisy answers, one account that outlives the owner's process, one refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.network.parties import running, tables

from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.errors import PolicyError, PrivacyError
from tablepuppet.owner.owner_log import read_log, verify
from tablepuppet.protocol.evidence import public_text, read_asker_key

QUERY = "SELECT o.x, o.z, i.price, o.y = 1 AS y FROM orders o JOIN items i ON o.item = i.item"
ASK = {"epsilon": 1.0, "bounds": {"x": (-3, 3), "z": (-3, 3), "price": (-3, 3)}}


@pytest.mark.slow
def test_an_analyst_is_shown_noisy_figures_and_its_account_outlives_the_owners_process(tmp_path: Path) -> None:
    with running(tmp_path, tables(3000)) as parties:
        key = parties.folder / "certs" / "analyst.key"
        askers = f'askers = {{ analyst = "{public_text(read_asker_key(key))}" }}\n'
        for name in ("store-eu", "store-us"):
            (parties.folder / f"{name}-policy.toml").write_text(
                askers + "[budget.orders]\nanalyst = { epsilon = 1.6 }\n"
            )
            settings = parties.folder / f"{name}.toml"
            settings.write_text(settings.read_text().replace('"open.toml"', f'"{name}-policy.toml"'))
            parties.restart(name)
        (parties.folder / "supplier-policy.toml").write_text("minimum_rows = 5\n")
        settings = parties.folder / "supplier.toml"
        settings.write_text(settings.read_text().replace('"open.toml"', '"supplier-policy.toml"'))
        parties.restart("supplier")
        parties.await_clients()
        federation = ConnectedFederation(parties.federation, asker_key=key)
        given: dict[str, Any] = {
            "model": "boosted",
            "splits": "random",
            "trees": 4,
            "depth": 2,
            "test_where": "o.z > 1",
        }
        result = federation.train(QUERY, label="y", **given, privacy={"analyst": ASK})
        assert "is left in this period" in result.notes[0]
        assert result.traffic.total_bytes == 0
        assert set(result.metrics["test"]) == {"accuracy", "precision", "recall", "f1", "auc", "log_loss"}
        shown = [federation.evaluate(result, rows="all", privacy={"analyst": {"epsilon": 0.3}}) for _ in range(2)]
        assert shown[0].to_dict() != shown[1].to_dict()  # drawn anew, and paid for anew
        one = QUERY.replace("orders o", "(SELECT 5 AS item, x, z, y FROM orders) o")
        with pytest.raises(PrivacyError, match="most of them meet few rows of a partner"):  # and is paid for
            federation.evaluate(result, one, rows="all", privacy={"analyst": {"epsilon": 0.3}})
        assert federation.drift(result, privacy={"analyst": {"epsilon": 0.2}}).found() == []
        parties.restart("store-eu")
        parties.await_clients()
        with pytest.raises(PolicyError, match=r"analyst has ε = (1|0)\.\d+ left, and the job takes ε = 1\.5"):
            federation.evaluate(result, rows="all", privacy={"analyst": {"epsilon": 1.5}})
        log = parties.folder / "state" / "store-eu" / "log.jsonl"
        verify(log)
        spent = [s for entry in read_log(log) if entry.event == "spent" for s in entry.detail["spendings"]]
        assert [s["asker"] for s in spent if s["what"] == "analyst"] == ["analyst"] * 5
