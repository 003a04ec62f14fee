"""docs/deployment.md, followed to the letter: an authority, a coordinator, three organisations and a user.

Each is on a host of its own. Commands and files are those of the document; only the coordinator's name becomes its
address, and the store's database a Parquet file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.network.namespaces import hosts, needs_root
from tests.network.parties import OWNERS, QUERY, tables

import tablepuppet as tp

MINUTES = 300.0  # seconds
DOCUMENT = Path(__file__).parents[2] / "docs" / "deployment.md"


def blocks(language: str) -> list[str]:
    """The document's pieces of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `tablepuppet` is this one."""
    program = tmp_path / "bin" / "tablepuppet"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tablepuppet "$@"\n')
    program.chmod(0o755)
    return os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "OPENBLAS_NUM_THREADS": "1"}


def hand_over(authority: Path, host: Path, *names: str) -> None:
    """What the authority gives to one host."""
    (host / "certs").mkdir(parents=True)
    for name in names:
        shutil.copy(authority / "certs" / name, host / "certs" / name)


@pytest.mark.slow
@pytest.mark.root
@needs_root
def test_the_document_leads_to_a_trained_model(tmp_path: Path, shell: dict[str, str]) -> None:
    certificates, *_, use = [text for text in blocks("bash") if "certs init" in text or "tablepuppet train" in text]
    federation, client, policy, user = blocks("toml")
    with hosts(["coordinator", *OWNERS, "analyst"]) as made:
        address = made.addresses["coordinator"]

        def here(text: str) -> str:
            return text.replace("coordinator.example.org", address)

        authority = tmp_path / "authority"
        authority.mkdir()
        subprocess.run(["bash", "-e", "-c", here(certificates)], cwd=authority, env=shell, check=True)

        hand_over(authority, tmp_path / "coordinator", "ca.pem", "server.pem", "server.key", "revoked.txt")
        (tmp_path / "coordinator" / "federation.toml").write_text(here(federation))
        for name, table in OWNERS.items():
            host = tmp_path / name
            hand_over(authority, host, "ca.pem", f"{name}.pem", f"{name}.key")
            shutil.copy(authority / "clients.secret", host)
            pq.write_table(tables()[name], host / "table.parquet")
            written = here(client).replace("store-eu", name)
            written = re.sub(r"^orders = .*$", f'{table} = "table.parquet"', written, flags=re.MULTILINE)
            (host / "client.toml").write_text(written)
            (host / "policy.toml").write_text(policy.partition("[tables")[0])
        hand_over(authority, tmp_path / "analyst", "ca.pem", "analyst.pem", "analyst.key")
        (tmp_path / "analyst" / "federation.toml").write_text(here(federation) + user)
        (tmp_path / "analyst" / "returns.toml").write_text(f'query = "{QUERY}"\nlabel = "y"\nalgorithm = "admm"\n')

        def at(name: str, line: str) -> subprocess.Popen[bytes]:
            inside = ["ip", "netns", "exec", made.namespaces[name], "bash", "-c", f"exec {line}"]
            with (tmp_path / f"{name}.log").open("ab") as log:
                return subprocess.Popen(inside, cwd=tmp_path / name, env=shell, stdout=log, stderr=log)

        services = [at("coordinator", "tablepuppet serve federation.toml")]
        services += [at(name, "tablepuppet join client.toml") for name in OWNERS]
        try:
            train = next(line for line in use.splitlines() if line.startswith("tablepuppet train"))
            status = next(line for line in use.splitlines() if line.startswith("tablepuppet status"))
            until = time.monotonic() + MINUTES
            while at("analyst", status).wait(MINUTES) != 0:  # the coordinator is not there yet
                assert time.monotonic() < until, (tmp_path / "analyst.log").read_text()
            assert at("analyst", f"{train} --save model").wait(MINUTES) == 0, (tmp_path / "analyst.log").read_text()
        finally:
            for service in services:
                service.terminate()
            codes = [service.wait(MINUTES) for service in services]
    assert codes == [0] * 4
    key = (authority / "clients.secret").read_bytes().strip()
    held = tables()
    given = {"orders": [held["store-eu"], held["store-us"]], "items": held["supplier"]}
    rules = dict.fromkeys(given, tmp_path / "supplier" / "policy.toml")
    with tp.Federation(given, key=key, policies=rules) as local:
        expected = local.train(QUERY, label="y", algorithm="admm").model
    # Not bit for bit: under minimum_rows each owner rounds means and spreads by a secret of its own.
    ours = tp.load(tmp_path / "analyst" / "model").coefficients()
    assert np.allclose(ours["weight"], expected.coefficients()["weight"], rtol=0.02, atol=0.01)
