"""Join keys after one client leaked all it has: HMAC tokens open to a dictionary, blinded ones do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from tests.attacks.meddler import Meddler, shop
from tests.plan.disclosure import expect_disclosures
from tests.privacy.test_runs import Tap

import tablepuppet as tp
from tablepuppet.errors import MappingError, PolicyError
from tablepuppet.exchanges.keys import BlindedKeys, BlindKeys, Keys
from tablepuppet.exchanges.labels import DescribeLabels
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.owner import blinding
from tablepuppet.owner.blinding import Points, blind, blinding_key, map_to_curve, to_array, to_points
from tablepuppet.owner.jacobi import have_roots
from tablepuppet.owner.tokens import job_key, tokens
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.codec import Frame, decode
from tablepuppet.sources.columns import column_info

QUERY = "SELECT p.age, v.dose, p.y FROM patients p JOIN visits v ON p.person = v.person"
SHARED = bytes(range(32))
PEOPLE = 300  # any of whom may be anybody's: the dictionary


def hospital() -> dict[str, Any]:
    """Patients of one owner, visits of two; each has people that no other has."""
    random = np.random.default_rng(1)
    people = random.permutation(PEOPLE)

    def visits(who: np.ndarray[Any, Any]) -> pa.Table:
        return pa.table({"person": who, "dose": random.normal(size=len(who))})

    patients = {"person": people[:90], "age": random.normal(size=90), "y": random.integers(0, 2, 90)}
    return {"patients": pa.table(patients), "visits": [visits(people[60:150]), visits(people[30:200:2])]}


class Recorder:
    """A server that does what it should and keeps all that it sees."""

    def __init__(self, federation: tp.Federation) -> None:
        self._inner = federation._transport
        self.job = ""
        self.sent: dict[str, list[bytes]] = {}  # by client: keys that it sent
        federation._transport = self  # type: ignore[assignment]

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        answers = self._inner.exchange(frames, wait=wait)
        for client, given in answers.items():
            for asked, frame in zip(frames[client], given, strict=True):
                request, answer = decode(asked, REQUESTS), decode(frame, RESPONSES)
                if isinstance(answer, Keys):
                    self.job = request.job
                    for column in answer.columns.columns:
                        self.sent.setdefault(client, []).extend(column.combine_chunks().dictionary.to_pylist())
                elif isinstance(answer, BlindedKeys):
                    self.sent.setdefault(client, []).extend(to_array(answer.points).to_pylist())
        return answers

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()


def guesses(job: str) -> pa.Array:
    """The token of everybody, by the key that all clients share."""
    column = pa.chunked_array([pa.array(range(PEOPLE))])
    found = tokens(column, column_info("person", pa.int64()), "hmac", job_key(SHARED, job), "0")
    return found.dictionary.take(found.indices)


def points_of(tokens: pa.Array) -> Points:
    return np.frombuffer(b"".join(map_to_curve(tokens.to_pylist())), np.uint8).reshape(-1, 32)


def opened_with(leaked: bytes, job: str, seen: Sequence[bytes]) -> set[int]:
    """Whose keys a server reads that has one client's secrets and all that was ever sent."""
    key = blinding_key(leaked, job, "0")
    points = points_of(guesses(job))
    found = set(seen)
    tried = {0: to_array(points), 1: to_array(blind(points, key)), 2: to_array(blind(blind(points, key), key))}
    return {person for kind in tried.values() for person, token in enumerate(kind.to_pylist()) if token in found}


def test_with_one_client_s_secrets_a_server_reads_all_hmac_tokens_and_only_that_client_s_dh_tokens() -> None:
    tables = hospital()
    for mode in ("hmac", "dh"):
        with tp.Federation(tables, key=SHARED) as federation:
            recorder = Recorder(federation)
            federation.train(QUERY, label="y", epochs=2, privacy={"keys": mode})
            clients = {name: client.secret for name, client in federation._clients.items()}
        everybody = {int(p) for t in (tables["patients"], *tables["visits"]) for p in t["person"].to_pylist()}
        seen = [token for sent in recorder.sent.values() for token in sent]
        if mode == "hmac":
            by_token = {token: person for person, token in enumerate(guesses(recorder.job).to_pylist())}
            assert {by_token[token] for token in seen} == everybody
            continue
        leaking = next(name for name in clients if name.startswith("patients"))
        own = {int(p) for p in tables["patients"]["person"].to_pylist()}
        assert opened_with(clients[leaking], recorder.job, recorder.sent[leaking]) == own
        others = [token for name, sent in recorder.sent.items() if name != leaking for token in sent]
        assert opened_with(clients[leaking], recorder.job, others) == set()
        assert len(everybody - own) > 50  # whom HMAC would have given away


def test_blinded_keys_give_the_join_the_model_and_the_predictions_of_tokens() -> None:
    found = {}
    for mode in ("hmac", "dh"):
        with tp.Federation(hospital(), key=SHARED) as federation:
            result = federation.train(QUERY, label="y", epochs=5, privacy={"keys": mode})
            found[mode] = result, federation.predict(result), federation.evaluate(result, rows="all")
            assert result.traffic.all_told == expect_disclosures(result.plan, len(result.history))
    assert found["dh"][0].coefficients().equals(found["hmac"][0].coefficients())
    assert found["dh"][0].plan.mapping.joined_rows == found["hmac"][0].plan.mapping.joined_rows
    assert found["dh"][1].equals(found["hmac"][1])
    assert found["dh"][2] == found["hmac"][2]
    rounds = {mode: found[mode][0].traffic.setup.rounds for mode in found}
    assert rounds["dh"] == rounds["hmac"] + 2  # three owners of such keys


def test_unions_and_self_joins_are_joined_by_blinded_keys() -> None:
    query = f"{QUERY} WHERE v.dose > 0 UNION ALL {QUERY} WHERE v.dose <= 0"
    twice = (
        "SELECT a.dose, b.dose AS other, p.y FROM patients p "
        "JOIN visits a ON p.person = a.person JOIN visits b ON p.person = b.person"
    )
    for text in (query, twice):
        with tp.Federation(hospital(), key=SHARED) as federation:
            plain, dh = (federation.train(text, label="y", epochs=3, privacy={"keys": k}) for k in ("hmac", "dh"))
        assert dh.coefficients().equals(plain.coefficients())


def test_a_client_blinds_no_more_keys_and_no_others_than_its_contract_says() -> None:
    points = np.frombuffer(bytes(range(64)), np.uint8).reshape(2, 32)

    def ask(job: str) -> list[Message]:
        many = np.tile(points, (60, 1))
        zero = np.zeros((1, 32), np.uint8)
        return [
            BlindKeys(job=job, domain="7", points=points),  # keys that none of its own are compared with
            BlindKeys(job=job, domain="0", points=zero),  # whose answer would be the same under every secret
            BlindKeys(job=job, domain="0", points=points[:, :31]),
            BlindKeys(job=job, domain="0", points=many),
        ]

    with tp.Federation(hospital(), key=SHARED) as federation:
        meddler = Meddler(federation, "patients", DescribeLabels, ask)
        federation.train(QUERY, label="y", epochs=2, privacy={"keys": "dh", "max_keys": 200})
        log = federation._clients["patients"].log.entries
    assert [type(answer) for answer in meddler.answers] == [Failure] * 4
    whys = [answer.message for answer in meddler.answers]
    assert "compared with" in whys[0]
    assert "no point" in whys[1]
    assert "shape" in whys[2]
    assert "200 keys of others are blinded at most" in whys[3]
    told = next(entry.detail for entry in log if entry.event == "disclosed")
    assert told["keys of others, blinded"] == 90 + 85 + 1
    with tp.Federation(hospital(), key=SHARED) as federation:
        meddler = Meddler(federation, "patients", DescribeLabels, lambda job: [ask(job)[3]])
        federation.train(QUERY, label="y", epochs=2)
        assert isinstance(meddler.answers[0], Failure)
        with pytest.raises(MappingError, match=r"blind 1\d\d keys of others, and privacy.max_keys lets it blind 9"):
            federation.train(QUERY, label="y", epochs=2, privacy={"keys": "dh", "max_keys": 9})


def test_an_owner_that_wants_blinded_keys_only_refuses_others_and_bounds_them(tmp_path: Any) -> None:
    (tmp_path / "policy.toml").write_text("keys_need_dh = true\nmax_blinded_keys = 500\n")
    with tp.Federation(hospital(), policies={"patients": tmp_path / "policy.toml"}) as federation:
        for privacy, why in (({}, "keys_need_dh"), ({"keys": "dh"}, "max_blinded_keys")):
            with pytest.raises(PolicyError, match=why):
                federation.train(QUERY, label="y", epochs=2, privacy=privacy)
        result = federation.train(QUERY, label="y", epochs=2, privacy={"keys": "dh", "max_keys": 500})
        assert federation.predict(result).num_rows == result.plan.mapping.joined_rows
        assert "blinded by every client" in " ".join(str(result.plan).split())


def test_all_points_lie_on_the_curve_so_that_blinding_keeps_no_bit_of_a_key() -> None:
    """Of a point of the twist the blinded one is of the twist too: half of all guesses would be excluded."""
    points = points_of(guesses("j"))
    prime = 2**255 - 19
    for packed in (points, blind(points, X25519PrivateKey.generate())):
        numbers = [int.from_bytes(p.tobytes(), "little") % 2**255 for p in packed]
        assert all(pow(u**3 + 486662 * u**2 + u, (prime - 1) // 2, prime) == 1 for u in numbers)
    assert len({p.tobytes() for p in points}) == PEOPLE


@pytest.mark.parametrize("has_top_bit", [False, True])
def test_points_that_lead_every_secret_to_zero_are_refused_however_they_are_written(has_top_bit: bool) -> None:
    """Whoever sends one learns nothing from the answer, for there is none; honest points in between change nothing."""
    prime, of_order_eight = 2**255 - 19, 325606250916557431795983626356110631294008115727848805560023387167927233504
    small = [0, 1, prime - 1, of_order_eight, pow(of_order_eight, -1, prime)]
    honest = points_of(guesses("j"))[:3]
    for u in (*small, prime, prime + 1):
        packed = np.frombuffer((u + has_top_bit * 2**255).to_bytes(32, "little"), np.uint8)
        with pytest.raises(PolicyError, match="no point that an owner would send"):
            blind(np.vstack([honest, packed, honest]), X25519PrivateKey.generate())


def test_processes_that_share_many_keys_out_give_the_same_points(monkeypatch: pytest.MonkeyPatch) -> None:
    key, here = X25519PrivateKey.generate(), points_of(guesses("j"))
    monkeypatch.setattr(blinding, "_MIN_KEYS_FOR_PROCESSES", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert np.array_equal(blind(to_points(guesses("j")), key), blind(here, key))
    assert blind(here, key)[-1].tobytes() == key.exchange(X25519PublicKey.from_public_bytes(here[-1].tobytes()))
    with pytest.raises(PolicyError, match="no point that an owner would send"):
        blind(np.zeros((3, 32), np.uint8), key)


def test_the_compiled_symbol_says_of_every_number_what_euler_s_power_says() -> None:
    prime = 2**255 - 19
    given = [int(np.random.default_rng(n).integers(2**62)) ** 4 * 7**n % prime for n in range(200)]
    given += [1, 2, 3, 2**64, 2**200, 2**254, prime - 1, prime - 2]
    packed = np.frombuffer(b"".join(n.to_bytes(32, "little") for n in given), "<u8").reshape(-1, 4)
    assert have_roots(packed).tolist() == [pow(n, (prime - 1) // 2, prime) == 1 for n in given]
    assert blinding._have_roots(given) == have_roots(packed).tolist()


def test_the_order_of_blinding_does_not_matter_and_each_is_one_exchange() -> None:
    points = points_of(guesses("j"))[:20]
    one, two = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    assert np.array_equal(blind(blind(points, one), two), blind(blind(points, two), one))
    by_hand = one.exchange(X25519PublicKey.from_public_bytes(points[0].tobytes()))
    assert blind(points, one)[0].tobytes() == by_hand
    assert np.array_equal(to_points(to_array(points)[3:]), points[3:])


def test_a_server_compares_no_keys_but_those_that_the_contract_compares() -> None:
    """Tokens of two columns under one domain would tell which values both have."""
    tables = shop() | {"people": pa.table({"id": np.arange(200), "age": np.linspace(18, 80, 200)})}
    joins = "JOIN items i ON o.item = i.item JOIN people p ON o.id = p.id"
    query = f"SELECT o.amount, i.price, p.age, o.y FROM orders o {joins}"
    with tp.Federation(tables) as federation:
        tap = Tap(federation)
        federation.explain(query, label="y")
        [contract] = [m.contract for m in tap.asked(ProposeContract) if "orders" in m.contract.tables]
        assert [line.split(": ")[1] for line in contract.lines() if "join key" in line] == ["join key 0", "join key 1"]
        [keys] = [
            answer.columns
            for answer in (decode(f, RESPONSES) for f in tap.up)
            if isinstance(answer, Keys) and answer.columns.num_columns == 2
        ]
        items, ids = (set(column.to_pylist()) for column in keys.columns)
        values = [set(tables["orders"][name].to_pylist()) for name in ("item", "id")]
    assert values[0] & values[1]
    assert not items & ids
