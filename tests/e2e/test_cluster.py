"""The real servers that tests and `opentab chaos` play on: Kafka's broker, Spark's masters and workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from brokers import READ_SECONDS_MAX, read, secure, write
from opentab.core.errors import MachineError
from opentab.runtime import config
from opentab_tools.servers import jars
from opentab_tools.servers.broker import Broker
from opentab_tools.servers.daemon import Daemon
from opentab_tools.servers.spark_cluster import SparkCluster
from processes import wait_for
from product import json_lines, opentab


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def test_a_broker_that_is_killed_comes_back_on_its_port_with_all_that_it_had_acknowledged(broker: Broker) -> None:
    broker.create_topic("usage", partitions=2)
    write(broker, "usage", [b"one", b"two"])
    address = broker.address
    broker.kill()
    assert not broker.runs
    broker.start()
    assert broker.address == address
    write(broker, "usage", [b"three"])
    assert sorted(read(broker, "usage", partitions=2, count=3)) == [b"one", b"three", b"two"]


def test_nobody_makes_a_topic_by_misspelling_it(broker: Broker) -> None:
    for _ in range(2):
        topic = AdminClient(broker.client_options).list_topics("usgae", timeout=READ_SECONDS_MAX).topics["usgae"]
        assert topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_secured_broker_lets_in_who_knows_the_password_and_nobody_else(tmp_path: Path) -> None:
    security = secure(tmp_path)
    with Broker(tmp_path / "broker", security=security) as broker:
        broker.create_topic("usage", partitions=1)
        write(broker, "usage", [b"one"])
        assert read(broker, "usage", partitions=1, count=1) == [b"one"]
        options = broker.client_options | {"sasl.password": "wrong"}
        with pytest.raises(KafkaException):
            AdminClient(options).list_topics(timeout=2)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(MachineError, match="could not be formatted"):
        broker.start()


def test_jars_that_cannot_be_fetched_leave_nothing_behind_and_say_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MachineError, match=r"nothing-of-ours:1.0 could not be fetched .*not found.*\(let this machine"):
        jars.fetch_jars("nothing", ("org.opentab.nowhere:nothing-of-ours:1.0",))
    assert [path.name for path in (tmp_path / "opentab" / "jars").iterdir()] == [".nothing.lock"]


def test_an_application_goes_on_when_the_active_master_and_an_executor_are_killed(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "cluster") as cluster:
        command = [sys.executable, str(Path(__file__).parents[1] / "support" / "scene_cluster.py"), cluster.master_url]
        application = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert count(application, 10) == 10
            killed = cluster.active_master
            assert killed is not None
            killed.daemon.kill()
            assert count(application, 20) == 20
            cluster.wait_until(lambda: cluster.workers_alive == 2, "the standby had taken over")
            assert cluster.active_master is not killed
            dead = cluster.kill_executor()
            assert count(application, 30) == 30
            cluster.wait_until(lambda: len(cluster.executors()) == 2, "the executor was replaced")
            assert dead not in [executor.pid for executor in cluster.executors()]
            killed.daemon.start()
            cluster.wait_until(lambda: cluster.standby_master is killed, "it stood by")
        finally:
            application.kill()
            application.communicate()
        processes = [part.daemon for part in (*cluster.masters, *cluster.workers)]
    assert not any(process.runs for process in processes)


@pytest.mark.skipif(os.geteuid() != 0, reason="to hide the driver's disk from the workers needs the right to mount")
def test_executors_need_nothing_of_the_drivers_disk_but_the_ledger(tmp_path: Path) -> None:
    """The log's segments are sent to them. They write to the ledger's own place, and to no other."""
    home_path, ledger = tmp_path / "home", tmp_path / "ledger"
    home_path.mkdir()
    with SparkCluster(tmp_path / "cluster", hidden_path=home_path) as cluster:
        (home_path / "opentab.toml").write_text(
            f'[ledger]\nuri = "{ledger}"\n[pipeline]\nbatch_events_max = 3000\n'
            f'[spark]\nmaster = "{cluster.master_url}"\ndriver.host = "127.0.0.1"\nexecutor.memory = "512m"\n'
        )
        home = config.load(home_path)
        opentab("generate", "--events", "300", "--bad", "0.01", "--sources", "2", home=home)
        opentab("run", "--once", home=home)
        verdict = json_lines(opentab("verify", "--format", "json", home=home).stdout)[0]
        assert verdict["agrees"] and verdict["not_yet_billed_segments"] == 0, verdict


def test_servers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Also if it is killed and can say nothing to anybody."""
    script = (
        "import sys, time; from pathlib import Path; from opentab_tools.servers.daemon import Daemon\n"
        "one = Daemon('sleeper', ['sleep', '600'], Path(sys.argv[1])); one.start()\n"
        "print(one.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the server ended")


def test_a_server_that_ends_too_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    server = Daemon("loser", ["sh", "-c", "echo no such luck; exit 3"], tmp_path)
    server.start()
    with pytest.raises(MachineError, match="loser ended: no such luck"):
        server.wait_until(lambda: False, seconds_max=60)


def count(application: subprocess.Popen[str], rows: int) -> int:
    """Let the application's executors count so many rows."""
    assert application.stdin is not None
    assert application.stdout is not None
    application.stdin.write(f"{rows}\n")
    application.stdin.flush()
    return int(application.stdout.readline())
