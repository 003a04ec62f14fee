"""The ways to run a federation: neural models, a coordinator among the clients, without TLS, stopped and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.network.parties import OWNERS, QUERY, Parties, assert_same, in_process, running, tables

import tablepuppet as tp
from tablepuppet.errors import PrivacyError
from tablepuppet.owner.owner_log import OwnerLog, verify

JOB = f'query = "{QUERY}"\nlabel = "y"\nalgorithm = "sgd"\nbatch_size = 8\nepochs = 6\nlearning_rate = 0.05\n'


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tablepuppet", *words]


def children(pid: int) -> Sequence[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_defunct(pid: str) -> bool:
    """Whether a process has ended, and only its parent's parent has not heard of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow  # four processes import torch
def test_a_neural_model_is_the_same_over_the_network(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = {"label": "y", "model": "mlp", "algorithm": "sgd", "batch_size": 200, "epochs": 2}
    with running(tmp_path, tables()) as parties:
        network = parties.connect().train(QUERY, **job)  # type: ignore[arg-type]
    with in_process(tables()) as federation:
        local = federation.train(QUERY, **job)  # type: ignore[arg-type]
    for ours, theirs in zip(network.model.blocks, local.model.blocks, strict=True):
        assert ours.theta.tobytes() == theirs.theta.tobytes()
    assert network.objective == local.objective


def test_a_private_neural_model_is_trained_over_the_network_as_in_process(tmp_path: Path) -> None:
    """Real sockets and TLS; the clients live with the coordinator, so that torch is loaded once."""
    pytest.importorskip("torch")
    bounds = {"x": (-3, 3), "z": (-3, 3), "price": (-3, 3)}
    features = {"noise": 1e-9, "clip": 1e3, "bounds": bounds}  # as good as none: runs can be compared
    privacy = {"features": features, "allow_reconstruction": True}
    given = {"label": "y", "model": "mlp", "algorithm": "sgd", "batch_size": None, "epochs": 3, "hidden": (4,)}
    job: dict[str, Any] = given | {"learning_rate": 0.5, "privacy": privacy}
    parties = Parties(tmp_path)
    parties.write(tables(100))
    parties.extra["server"] = [word for name in OWNERS for word in ("--with", f"{tmp_path}/{name}.toml")]
    parties.start("server")
    try:
        parties.await_clients()
        network = parties.connect().train(QUERY, **job)
        with pytest.raises(PrivacyError, match="which no ε covers"):  # nor do they by evaluating it afterwards
            parties.connect().evaluate(network)
        logs = {name: tmp_path / "state" / name / "log.jsonl" for name in OWNERS}
        spent = [OwnerLog(path).account.spendings for path in logs.values()]
        for name, path in logs.items():  # what the result keeps of each owner's log is a beginning of it
            assert verify(path, network.heads[name].root)[1] == network.heads[name]
    finally:
        parties.kill("server")
    with in_process(tables(100)) as federation:
        local = federation.train(QUERY, **job)
    for ours, theirs in zip(network.model.blocks, local.model.blocks, strict=True):
        np.testing.assert_allclose(ours.theta, theirs.theta, atol=1e-4)
    assert local.objective < local.history[0].objective - 1e-3
    # Figures from exact predictions stay with the server: of a private job, none of them leaves.
    assert np.isnan([network.objective, *(record.objective for record in network.history)]).all()
    assert not network.metrics
    assert not network.curves
    assert not any(record.metrics or record.residuals for record in network.history)
    assert "stay with the server" in str(network)
    assert "NaN" not in network.report(tmp_path / "report.html").read_text()
    assert network.privacy.to_dict() == local.privacy.to_dict()
    for spendings in spent:
        assert [spending.steps for spending in spendings if spending.what == "features"] == [3]


def test_keys_that_every_owner_blinds_give_the_same_join_over_the_network(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    parties.write(tables())
    parties.extra["server"] = [word for name in OWNERS for word in ("--with", f"{tmp_path}/{name}.toml")]
    parties.start("server")
    try:
        parties.await_clients()
        federation = parties.connect()
        result = federation.train(QUERY, label="y", privacy={"keys": "dh"})
        predicted = federation.predict(result).num_rows
    finally:
        parties.kill("server")
    with in_process(tables()) as local:
        expected = local.train(QUERY, label="y", privacy={"keys": "dh"})
        assert_same(result, expected)
        assert result.traffic.setup.by_message["BlindedKeys"] > 30 * 32
        assert result.coefficients().equals(local.train(QUERY, label="y").coefficients())
    assert predicted == expected.plan.mapping.joined_rows


def test_the_coordinator_may_live_with_a_client(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    parties.write(tables())
    parties.extra["server"] = ["--with", f"{tmp_path}/supplier.toml"]
    parties.start("server", "store-eu", "store-us")
    try:
        parties.await_clients()
        result = parties.connect().train(QUERY, label="y")
        assert set(parties.stop().values()) == {0}, parties.logs()
    finally:
        for name in list(parties.processes):
            parties.kill(name)
    with in_process(tables()) as federation:
        assert_same(result, federation.train(QUERY, label="y"))


def test_ctrl_c_stops_a_run_that_can_be_resumed_and_leaves_nobody_behind(tmp_path: Path) -> None:
    with running(tmp_path, tables()) as parties:
        (tmp_path / "job.toml").write_text(JOB)
        train = command("train", f"{tmp_path}/job.toml", "--federation", str(parties.federation))
        user = subprocess.Popen(train, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        parties.await_status(lambda s: any(r["round"] > 20 for r in s["runs"]))
        user.send_signal(signal.SIGINT)
        _, said = user.communicate(timeout=300)
        assert user.returncode == 130
        assert "interrupted from the keyboard" in said
        assert "Traceback" not in said
        parties.await_status(lambda s: s["runs"][-1]["state"] == "interrupted")
        resumed = subprocess.run([*train, "--resume", "--save", f"{tmp_path}/model"], timeout=300, check=False)
        assert resumed.returncode == 0
        codes = parties.stop()
    assert set(codes.values()) == {0}
    with in_process(tables()) as federation:
        job = {"algorithm": "sgd", "batch_size": 8, "epochs": 6, "learning_rate": 0.05}
        local = federation.train(QUERY, label="y", **job)  # type: ignore[arg-type]
    for ours, theirs in zip(tp.load(tmp_path / "model").blocks, local.model.blocks, strict=True):
        assert ours.theta.tobytes() == theirs.theta.tobytes()


def test_processes_end_when_told_and_leave_no_child_and_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    parties = Parties(tmp_path)
    parties.write(tables(50))
    env = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": env}
    wanted = (command("serve", str(parties.federation)), command("join", f"{tmp_path}/supplier.toml"))
    started = [subprocess.Popen(words, **quiet) for words in wanted]  # type: ignore[call-overload]
    parties.start("store-eu", "store-us")
    try:
        parties.await_clients()
        parties.connect().train(QUERY, label="y")
        own = [child for process in started for child in children(process.pid)]
        assert all(child in children(started[0].pid) for child in own)  # the server's, for runs; clients have none
        assert parties.stop() == {"store-eu": 0, "store-us": 0}  # by SIGTERM
        for process, how in zip(started, (signal.SIGTERM, signal.SIGINT), strict=True):
            process.send_signal(how)
        assert [process.wait(300) for process in started] == [0, 0]
        until = time.monotonic() + 300
        while any(Path(f"/proc/{child}").exists() and not is_defunct(child) for child in own):
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        for process in started:
            process.kill()
        for name in list(parties.processes):
            parties.kill(name)
    assert not list((tmp_path / "tmp").iterdir())
    assert not [p for p in (tmp_path / "state").rglob("*") if p.name.startswith(".")]


def test_without_tls_the_flag_must_be_given_and_the_address_be_this_machine(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    parties.write(tables())
    for file in tmp_path.glob("*.toml"):
        file.write_text(file.read_text().replace("grpc+tls://", "grpc+tcp://"))
    refused = subprocess.run(
        command("serve", str(parties.federation)), capture_output=True, text=True, timeout=300, check=False
    )
    assert refused.returncode == 2
    assert "--insecure" in refused.stderr
    parties.extra = {name: ["--insecure"] for name in ("server", *OWNERS)}
    parties.start()
    try:
        parties.await_clients()
        result = parties.connect().train(QUERY, label="y")
        parties.stop()
    finally:
        for name in list(parties.processes):
            parties.kill(name)
    with in_process(tables()) as federation:
        assert_same(result, federation.train(QUERY, label="y"))
    parties.federation.write_text(parties.federation.read_text().replace("127.0.0.1:", "192.0.2.1:"))
    parties.start("server")
    parties.processes["server"].join(120)
    assert parties.processes.pop("server").exitcode == 2
    assert "this machine only" in (tmp_path / "server.log").read_text()


def test_a_slow_client_is_waited_for_and_named(tmp_path: Path) -> None:
    """A stopped process holds its connection and says nothing: the run waits, says for whom, and goes on."""
    with running(tmp_path, tables(), heartbeat=0.3) as parties:
        (tmp_path / "job.toml").write_text(JOB)
        train = command("train", f"{tmp_path}/job.toml", "--federation", str(parties.federation))
        user = subprocess.Popen(train, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        parties.await_status(lambda s: any(r["round"] > 5 for r in s["runs"]))
        slow = parties.processes["store-us"].pid
        assert slow is not None
        os.kill(slow, signal.SIGSTOP)
        found = parties.await_status(lambda s: "store-us" in s["runs"][-1]["waiting"])
        assert 0 < found["runs"][-1]["waiting"]["store-us"] <= 60
        os.kill(slow, signal.SIGCONT)
        _, said = user.communicate(timeout=300)
    assert user.returncode == 0, said
    assert "waiting for client store-us, at most" in said


def test_several_jobs_are_done_one_after_another(tmp_path: Path) -> None:
    with running(tmp_path, tables()) as parties:
        (tmp_path / "job.toml").write_text(JOB.replace("epochs = 6", "epochs = 1"))
        train = command("train", f"{tmp_path}/job.toml", "--federation", str(parties.federation), "--json")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        users = [subprocess.Popen(train, **quiet) for _ in range(2)]  # type: ignore[call-overload]
        until = time.monotonic() + 300
        busiest = 0
        while any(user.poll() is None for user in users) and time.monotonic() < until:
            runs = parties.connect().status()["runs"]
            busiest = max(busiest, sum(run["state"] in ("running", "waiting") for run in runs))
            time.sleep(0.2)
        assert [user.wait(1) for user in users] == [0, 0]
    assert busiest == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["serve", "join"])
def test_state_that_cannot_be_kept_is_said_before_anything_begins(tmp_path: Path, command: str) -> None:
    parties = Parties(tmp_path)
    parties.write(tables(20))
    (tmp_path / "state").write_text("a file, where a folder should be")
    file = parties.federation if command == "serve" else tmp_path / "supplier.toml"
    words = [sys.executable, "-m", "tablepuppet", command, str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "cannot write in the folder" in done.stderr
