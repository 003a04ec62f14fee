"""An owner's log holds every event and expense, and whoever keeps one of its heads notices a log that was replaced."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.cli.main import main
from tablepuppet.errors import PolicyError
from tablepuppet.owner.owner_log import LostStateError, OwnerLog, read_head, read_log, read_proof, verify
from tablepuppet.privacy.ledger import Account, Spending, TableBudget
from tablepuppet.protocol.evidence import MerkleTree, TreeHead, prove_consistency

SPENT = Spending(table="people", what="label", name="a", epsilon=1.0)
BUDGET = TableBudget(label=1.5)


def root(entries: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, as it is written there."""
    if len(entries) < 2:
        return hashlib.sha256(b"\0" + entries[0]).digest() if entries else hashlib.sha256().digest()
    half = 1 << (len(entries) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + root(entries[:half]) + root(entries[half:])).digest()


@given(st.lists(st.binary(max_size=4), max_size=40))
def test_heads_are_those_of_rfc_6962(entries: list[bytes]) -> None:
    tree = MerkleTree()
    for entry in entries:
        tree.append(entry)
    assert tree.head == TreeHead(len(entries), root(entries).hex())


@given(st.lists(st.binary(max_size=4), max_size=40), st.data())
def test_proofs_of_consistency_are_those_of_rfc_6962(entries: list[bytes], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(entries)))
    proof = prove_consistency(entries, size)
    assert proof.holds()
    assert (proof.first, proof.second) == tuple(TreeHead(len(e), root(e).hex()) for e in (entries[:size], entries))
    assert len(proof.path) <= 1 + len(entries).bit_length()
    if 0 < size < len(entries):
        forked = TreeHead(size, root([*entries[: size - 1], b"other"]).hex())
        cut = proof.path[:-1]
        for lie in ({"first": forked}, {"second": forked}, {"path": cut}, {"path": (*proof.path, forked.root)}):
            assert not msgspec.structs.replace(proof, **lie).holds()


def test_whoever_kept_a_head_verifies_a_proof_without_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, proof, kept = tmp_path / "log.jsonl", str(tmp_path / "proof.json"), list[str]()
    log = OwnerLog(path)
    for number in range(7):
        log.write("agreed", str(number))
        kept.append(log.head.root)
    assert main(["log", "verify", str(path), "--expect", kept[2], "--prove", proof]) == 0
    path.unlink()
    assert main(["log", "verify", "--proof", proof, "--expect", kept[2][:16]]) == 0
    assert f"the head {kept[6]} continues that of 3 lines" in " ".join(capsys.readouterr().out.split())
    assert main(["log", "verify", "--proof", proof, "--expect", kept[3]]) != 0
    assert "does not show" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The state of an owner who has spent 1 of 1.5; its head is kept elsewhere."""
    log = opened(tmp_path)
    log.write("agreed", "first")
    log.spend(SPENT, budget=BUDGET)
    return tmp_path


def opened(folder: Path) -> OwnerLog:
    return OwnerLog(folder / "state" / "log.jsonl", anchor=folder / "head")


def test_a_deleted_log_does_not_reset_a_budget(folder: Path) -> None:
    shutil.rmtree(folder / "state")
    assert OwnerLog(folder / "state" / "log.jsonl").account == Account()  # without a head, nobody notices
    for _ in range(2):
        with pytest.raises(LostStateError, match=r"has 0 lines and does not continue the one of 2 lines .* log accept"):
            opened(folder)


def test_a_log_that_is_restored_from_an_older_copy_is_refused(folder: Path) -> None:
    shutil.copytree(folder / "state", folder / "copy")
    opened(folder).spend(msgspec.structs.replace(SPENT, name="b", epsilon=0.5), budget=BUDGET)
    shutil.rmtree(folder / "state")
    shutil.copytree(folder / "copy", folder / "state")
    with pytest.raises(LostStateError, match="restored from an older copy"):
        opened(folder)


def test_a_forked_log_is_refused_by_whoever_keeps_a_head_of_the_other_branch(folder: Path) -> None:
    shutil.copytree(folder, folder / "fork")
    opened(folder).write("agreed", "one")
    other = opened(folder / "fork")
    other.write("agreed", "another")
    kept = opened(folder).head
    with pytest.raises(LostStateError, match="is kept by the server"):
        other.expect(kept, "the server")
    with pytest.raises(LostStateError):  # and it stays refused where the server is not asked
        opened(folder / "fork")
    opened(folder).expect(kept, "the server")


def test_a_log_goes_on_once_a_person_accepts_that_it_was_lost(folder: Path) -> None:
    shutil.rmtree(folder / "state")
    lost = read_head(folder / "head")
    OwnerLog(folder / "state" / "log.jsonl").accept(lost)
    log = opened(folder)
    log.expect(lost, "the server")
    (entry,) = read_log(folder / "state" / "log.jsonl")
    assert (entry.event, entry.detail["lost"]) == ("accepted", msgspec.to_builtins(lost))
    with pytest.raises(LostStateError):
        log.expect(TreeHead(7, "0" * 64), "the server")


def test_a_head_that_differs_in_one_digit_is_another_one(folder: Path) -> None:
    log, head = opened(folder), opened(folder).head
    for place in range(64):
        other = "0" if head.root[place] != "0" else "1"
        assert not log.follows(TreeHead(head.size, head.root[:place] + other + head.root[place + 1 :])), place
    assert log.follows(head)
    assert not log.follows(TreeHead(head.size - 1, head.root))
    assert not log.follows(TreeHead(head.size + 1, head.root))


def test_a_log_that_is_opened_with_a_new_anchor_leaves_its_head_there(folder: Path) -> None:
    log = OwnerLog(folder / "state" / "log.jsonl", anchor=folder / "another")
    assert read_head(folder / "another") == log.head


def test_a_line_is_on_the_disk_and_for_its_owners_eyes_before_writing_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, sync = tmp_path / "log.jsonl", list[bytes](), os.fsync

    def watch(handle: int) -> None:
        sync(handle)
        if os.path.sameopenfile(handle, (opened := path.open("rb")).fileno()):
            synced.append(opened.read())
        opened.close()

    log = OwnerLog(path)
    monkeypatch.setattr(os, "fsync", watch)
    for number in range(3):
        log.write("agreed", str(number))
        assert synced[-1] == path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_proof_that_shows_nothing_is_refused(tmp_path: Path) -> None:
    path, entries = tmp_path / "proof.json", [b"a", b"b", b"c", b"d", b"e"]
    proof = prove_consistency(entries, 3)
    path.write_bytes(msgspec.json.encode(proof))
    assert read_proof(path, proof.first.root) == proof
    for lie in ({"second": TreeHead(5, "0" * 64)}, {"path": proof.path[:-1]}, {"path": proof.path[::-1]}):
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(proof, **lie)))
        with pytest.raises(LostStateError, match="does not show"):
            read_proof(path, proof.first.root)


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_a_torn_last_line_is_cut_off_with_a_note_and_nothing_is_forgotten(folder: Path, cut: int) -> None:
    path = folder / "state" / "log.jsonl"
    whole = path.read_bytes()
    shutil.copy(folder / "head", folder / "before")
    opened(folder).write("agreed", "second")
    path.write_bytes(path.read_bytes()[: len(whole) + cut])  # the machine died while it was written
    shutil.copy(folder / "before", folder / "head")
    log = opened(folder)
    assert log.account == Account((SPENT,))
    last = read_log(path)[-1]
    assert (last.event, last.number, last.detail["bytes cut off"]) == ("repaired", 3, cut)
    log.write("agreed", "third")
    assert opened(folder).head.size == 4


def test_a_line_that_was_whole_cannot_be_torn_off(folder: Path) -> None:
    path = folder / "state" / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LostStateError):
        opened(folder)


def test_a_changed_line_is_named(folder: Path) -> None:
    opened(folder).write("agreed", "second")
    path = folder / "state" / "log.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"epsilon":1.0', b'"epsilon":0.1'))
    with pytest.raises(PolicyError, match="line 3 does not follow from the line before"):
        opened(folder)


def test_a_head_that_somebody_kept_is_found_among_the_beginnings(folder: Path) -> None:
    kept = opened(folder).head
    opened(folder).write("agreed", "second")
    path = folder / "state" / "log.jsonl"
    assert verify(path, kept.root[:16]) == (opened(folder).head, kept)
    with pytest.raises(LostStateError, match="no beginning of the log"):
        verify(path, "0" * 16)


def test_the_account_and_the_log_of_an_earlier_release_are_read_in_once(tmp_path: Path) -> None:
    state, earlier, previous = tmp_path / "state", list[bytes](), "0" * 64
    state.mkdir()
    for number in (1, 2):
        line: dict[str, object] = {
            "number": number,
            "time": "2026-01-01T00:00:00+00:00",
            "event": "agreed",
            "job": "j",
            "contract": "c",
        }
        line |= {"detail": {}, "previous": previous, "hash": ""}
        previous = hashlib.sha256(msgspec.json.encode(line, order="sorted")).hexdigest()
        earlier.append(msgspec.json.encode(line | {"hash": previous}) + b"\n")
    (state / "log.jsonl").write_bytes(b"".join(earlier))
    (state / "account.json").write_bytes(msgspec.json.encode(Account((SPENT,))))
    for _ in range(2):
        log = opened(tmp_path)
        log.read_earlier_account(state / "account.json")
        assert log.account == Account((SPENT,))
        assert log.head.size == 3
    (state / "account.json").unlink()  # it is of no use any more
    assert opened(tmp_path).account == Account((SPENT,))
    (state / "log.jsonl").write_bytes(b"".join(earlier).replace(b'"j"', b'"k"', 1))
    with pytest.raises(PolicyError, match="line 1 does not follow"):
        read_log(state / "log.jsonl")


def test_refusals_beyond_an_hours_lines_are_counted_in_the_next_line(tmp_path: Path) -> None:
    hour = [8]
    log = OwnerLog(clock=lambda: datetime(2026, 11, 17, hour[0], tzinfo=UTC))
    log.write("agreed", "first")
    for _ in range(10_490):
        log.write("refused", "second", detail={"why": "the policy does not grant it"})
    assert len(log.entries) == 10_000
    with pytest.raises(PolicyError, match="10,000 lines an hour and is full; nothing leaves before it is logged"):
        log.write("agreed", "third")
    log.write("disclosed", "first", detail={"scores": 7})  # it was agreed to before
    assert log.entries[-1].detail == {"scores": 7, "refusals not written": 491}
    log.write("refused", "second")
    hour[0] = 9
    log.write("agreed", "third")
    assert log.entries[-1].detail == {"refusals not written": 1}
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, log.entries)))
    assert verify(path)[0] == log.head
    assert log.head.size == 10_002
