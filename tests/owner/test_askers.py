"""An owner that names its askers verifies who asks, whatever the server claims."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import JobError, PolicyError
from tablepuppet.owner.owner_files import use_of
from tablepuppet.owner.policy import Policy, read_policy
from tablepuppet.protocol.contract import Contract
from tablepuppet.protocol.evidence import (
    Signature,
    _message,
    check_signature,
    new_asker_key,
    public_text,
    read_asker_key,
    sign_contract,
)
from tablepuppet.transport import certs
from tablepuppet.transport.link import Link

QUERY = "SELECT p.a, p.y FROM people p"
TERMS = Contract(purpose="train", asker="ann", label="y", scans=(), blocks=())


def people() -> dict[str, pa.Table]:
    a = np.random.default_rng(0).normal(size=80)
    return {"people": pa.table({"a": a, "y": (a > 0).astype(int)})}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "ann.key"
    path.write_bytes(new_asker_key())
    return path


def policy(key: Path) -> dict[str, Policy]:
    return {"people": Policy(askers={"ann": public_text(read_asker_key(key))})}


def test_a_signed_contract_is_agreed_to_and_its_signature_stays_in_the_log(key: Path) -> None:
    with tp.Federation(people(), policies=policy(key), asker_key=key) as owners:
        owners.train(QUERY, label="y", epochs=1)
        (first, *_) = owners._clients["people"].log.entries
    assert (first.event, first.detail["asker"]) == ("proposed", "ann")
    assert set(first.detail["signature"]) == {"time", "value"}


def test_whoever_does_not_sign_or_has_another_key_or_name_is_refused(key: Path, tmp_path: Path) -> None:
    for other in (tmp_path / "bob.key", tmp_path / "other" / "ann.key"):
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(new_asker_key())
    given = policy(key)
    for held, why in (
        (None, "'this process' is none of its askers"),
        (tmp_path / "bob.key", "'bob' is none of its askers"),
        (tmp_path / "other" / "ann.key", r"not that of the asker's key over this contract \(rule askers.ann\)"),
    ):
        with (
            tp.Federation(people(), policies=given, asker_key=held) as owners,
            pytest.raises(PolicyError, match=why),
        ):
            owners.train(QUERY, label="y", epochs=1)


def test_a_server_that_uses_a_signature_for_another_contract_is_refused(key: Path) -> None:
    """It has the asker's name, and a signature of hers, for a model of one epoch."""
    private, kept = read_asker_key(key), list[Signature]()

    def sign(contracts: Mapping[str, Contract]) -> dict[str, Signature]:
        kept.extend(sign_contract(c, private) for c in contracts.values() if not kept)
        return dict.fromkeys(contracts, kept[0])

    with tp.Federation(people(), policies=policy(key), asker_key=key) as owners:
        link = Link(owners._transport, asker="ann")
        link.sign = sign
        owners._link = lambda wire="float64": link  # type: ignore[method-assign]
        owners.train(QUERY, label="y", epochs=1)
        with pytest.raises(PolicyError, match="not that of the asker's key over this contract"):
            owners.train(QUERY, label="y", epochs=2)
        link.readers = ("mallory",)  # who would apply the model that its owner holds
        with pytest.raises(PolicyError, match="not that of the asker's key over this contract"):
            owners.train(QUERY, label="y", epochs=1)
    assert "shared with mallory" in " ".join(msgspec.structs.replace(TERMS, readers=("mallory",)).lines())


def test_a_signature_is_good_for_the_days_of_its_contract(key: Path) -> None:
    private = read_asker_key(key)
    public, good = public_text(private), sign_contract(TERMS, private)
    assert check_signature(TERMS, good, public) == ""
    old = (datetime.now(UTC) - timedelta(days=31)).isoformat(timespec="seconds")
    assert "not that of the asker's key" in check_signature(TERMS, msgspec.structs.replace(good, time=old), public)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")  # it would be good for longer
    ahead = Signature(later, private.sign(_message(TERMS, later)))  # type: ignore[call-arg]
    assert "too old" in check_signature(TERMS, ahead, public)
    day = msgspec.structs.replace(TERMS, days=-1)
    assert "too old" in check_signature(day, sign_contract(day, private), public)


def test_no_term_is_left_out_of_a_contracts_name_and_of_what_an_approval_of_its_asker_covers() -> None:
    fields = Contract.__struct_fields__
    other = {field: msgspec.structs.replace(TERMS, **{field: "another"}) for field in fields}
    assert len({contract.hash for contract in other.values()} | {TERMS.hash}) == len(fields) + 1
    who_reads_what = {"asker", "readers", "purpose", "scans", "blocks", "keys", "most_keys", "allow_reconstruction"}
    noise = {"label_privacy", "feature_privacy", "prediction_privacy"}
    assert {field for field in fields if use_of(other[field]) != use_of(TERMS)} == who_reads_what | noise


def test_the_key_of_a_certificate_signs_too(tmp_path: Path) -> None:
    certs.create_authority(tmp_path)
    certs.issue(tmp_path, "ann")
    private = read_asker_key(tmp_path / "ann.key")
    assert check_signature(TERMS, sign_contract(TERMS, private), public_text(private)) == ""


def test_what_is_no_key_is_named_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('askers = { ann = "no key" }')
    with pytest.raises(PolicyError, match="askers: 'no key'… is no public key"):
        read_policy(tmp_path / "policy.toml")
    (tmp_path / "ann.key").write_text("no key")
    with pytest.raises(JobError, match="tablepuppet certs asker FILE"):
        read_asker_key(tmp_path / "ann.key")
