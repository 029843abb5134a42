"""A ledger in a bucket, on a real server that speaks S3: every command, and every way to break it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable

from commit_gate import CommitGate, commit_gate
from ledgers import SETTINGS, batch_of_segments, bill, log_of, names_of, new_home, open_job
from opentab.billing.bill import Job
from opentab.core.errors import ConfigError, Fenced
from opentab.core.records import BatchRecord
from opentab.ledger.journal import Journal
from opentab.log import DirectoryLog, Producer
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.storage import Place
from opentab.simulator.generator import Plan, generate
from opentab.tables.table import look_at
from opentab_tools.servers.bucket_server import BUCKET, KEY_ID, SECRET, BucketServer
from processes import SMALL_BATCHES, caught_up_us, check_exact, position, serving, streams, wait_for
from product import event, json_lines, opentab

FROZEN_SECONDS = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    server = BucketServer(tmp_path_factory.mktemp("store") / "moto.log")
    yield server
    server.stop()


@pytest.fixture
def bucket_home(store: BucketServer, tmp_path: Path) -> Home:
    (tmp_path / "opentab.toml").write_text(SMALL_BATCHES + store.settings(tmp_path.name))
    return config.load(tmp_path)


def test_every_command_works_on_a_bucket(bucket_home: Home) -> None:
    home = bucket_home
    opentab("generate", "--months", "2", "--events", "150", "--bad", "0.02", "--until-final", home=home)
    opentab("run", "--once", home=home)
    check_exact(home)
    assert not (home.path / "ledger").exists()
    periods = json_lines(opentab("periods", "--format", "json", home=home).stdout)
    assert [row["status"] for row in periods][:2] == ["final", "final"]
    invoices = json_lines(opentab("invoices", "--format", "json", home=home).stdout)
    assert invoices
    files = home.invoices_path.rglob("*.jsonl")
    assert sum(len(path.read_text().splitlines()) for path in files) >= len(invoices)
    totals = json_lines(opentab("totals", "--format", "json", home=home).stdout)
    assert {(row["period"], row["customer"]) for row in totals} >= {(i["period"], i["customer"]) for i in invoices}
    assert json_lines(opentab("rejections", "--format", "json", home=home).stdout)
    (row,) = json_lines(opentab("sql", "select count(*) as n from invoices", "--format", "json", home=home).stdout)
    assert int(str(row["n"])) > 0
    first = invoices[0]
    opentab("trace", "--customer", str(first["customer"]), "--period", str(first["period"]), home=home)
    assert f"at {home.ledger}" in opentab("doctor", home=home, check=False).stdout
    for _ in ("a new replica", "one that is made anew"):
        with serving(home, workers=1) as url:
            wait_for(lambda: _position(url) == position(home), "the replica was there")
            answer = httpx.get(f"{url}/v1/customers/{first['customer']}/invoices").json()
            assert [i["total"] for i in answer["items"] if i["period"] == first["period"]][-1] == first["total"]
            overview = httpx.get(f"{url}/v1/overview").json()
            assert overview["pipeline"]["position"] == position(home)
            usage = httpx.get(f"{url}/v1/customers/{first['customer']}/usage?from=2000-01-01&to=2100-01-01")
            assert (usage.status_code, usage.json()["source"]) == (200, "ledger")
        shutil.rmtree(home.replica_path)


def test_of_two_that_commit_a_batch_at_the_same_moment_the_bucket_refuses_one(
    store: BucketServer, tmp_path: Path
) -> None:
    with commit_gate(store.endpoint) as gate:
        home = new_home(tmp_path / "home", SETTINGS + store.settings(tmp_path.name, gate.endpoint))
        outcomes = race(home, gate)
        assert {type(outcome) for outcome in outcomes} == {BatchRecord, Fenced}
        assert gate.answers == [("*", 200), ("*", 412)], "Delta's library asks for it, and the store refuses the second"
        journal = Journal.open(home.ledger, home.identity)
        assert journal is not None
        assert (journal.position, [row["amount_micros"] for row in journal.entries().to_table().to_pylist()]) == (
            1,
            [1_250_000],
        )
        opentab("verify", home=home)


def test_a_store_that_ignores_the_condition_would_take_both(store: BucketServer, tmp_path: Path) -> None:
    """Why docs/operating.md says which stores are safe: nothing but the condition tells the two apart."""
    with commit_gate(store.endpoint, drops_condition=True) as gate:
        home = new_home(tmp_path / "home", SETTINGS + store.settings(tmp_path.name, gate.endpoint))
        race(home, gate)
        assert gate.answers == [("*", 200), ("*", 200)], "both were told that they had committed the batch"


def test_a_commit_whose_answer_is_lost_is_known_again(store: BucketServer, tmp_path: Path) -> None:
    with commit_gate(store.endpoint) as gate:
        home = new_home(tmp_path / "home", SETTINGS + store.settings(tmp_path.name, gate.endpoint))
        gate.swallowed = commit_name(1)
        record = bill(home, event("ann", "1.25"))
        assert gate.answers[0] == ("*", 200), "the store took it; nobody heard"
        assert (record.batch, bill(home, event("ann", "0.75")).batch) == (1, 2)
        opentab("verify", home=home)


def test_killed_at_named_steps(bucket_home: Home) -> None:
    for month, moment in enumerate(["staged:2", "committed:2", "closing_staged:1"], start=1):
        plan = Plan(seed=month, first_period=f"2025-{month:02d}", events_per_customer=100, bad_share=0.02)
        generate(plan, bucket_home)
        died = opentab("run", "--once", home=bucket_home, check=False, OPENTAB_CRASH_AT=moment)
        assert died.returncode == -signal.SIGKILL, (moment, died)
    check_exact(bucket_home)


def test_a_store_that_answers_nothing_for_a_while_is_waited_for(
    store: BucketServer, bucket_home: Home, start: Callable[..., subprocess.Popen[str]]
) -> None:
    pipeline = start("run", home=bucket_home)
    wait_for(lambda: streams(bucket_home, pipeline), "Spark was up")
    opentab("generate", "--first-period", "2025-01", "--months", "1", "--events", "100", home=bucket_home)
    wait_for(lambda: position(bucket_home) >= 1, "a batch was billed")
    with serving(bucket_home, workers=1) as url:
        wait_for(lambda: (_position(url) or 0) >= 1, "the replica had it")
        with store.frozen():
            opentab("generate", "--first-period", "2025-02", "--months", "1", "--events", "100", home=bucket_home)
            time.sleep(FROZEN_SECONDS)  # how long it is gone
            answer = httpx.get(f"{url}/v1/overview", timeout=5).json()
            assert answer["staleness_ms"] > 1000 * FROZEN_SECONDS / 2, "reads go on, and say how old they are"
        generated_us = time.time_ns() // 1000
        wait_for(lambda: caught_up_us(bucket_home) > generated_us, "it caught up")
        wait_for(lambda: _position(url) == position(bucket_home), "the replica did, too")
    assert pipeline.poll() is None, pipeline.communicate()[0]
    pipeline.send_signal(signal.SIGINT)
    said, _ = pipeline.communicate(timeout=60)
    assert "Traceback" not in said
    check_exact(bucket_home)


def test_a_store_that_refuses_is_one_sentence_without_secrets(store: BucketServer, tmp_path: Path) -> None:
    with commit_gate(store.endpoint) as gate:
        home = new_home(tmp_path / "home", SETTINGS + store.settings(tmp_path.name, gate.endpoint))
        bill(home, event("ann", "1.25"))
        gate.broken = True
        for command, code in ((("totals",), 1), (("run", "--once"), 1), (("doctor",), 3)):
            stopped = opentab(*command, home=home, check=False)
            said = stopped.stdout + stopped.stderr
            assert (stopped.returncode, said.count("cannot be read")) == (code, 1), stopped
            assert "s3://opentab" in said and "403 Forbidden" in said
            assert KEY_ID not in said and SECRET not in said


def test_a_store_that_refuses_in_mid_stream_stops_the_pipeline_with_a_sentence(
    store: BucketServer, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    with commit_gate(store.endpoint) as gate:
        home = new_home(tmp_path / "home", SMALL_BATCHES + store.settings(tmp_path.name, gate.endpoint))
        pipeline = start("run", home=home)
        wait_for(lambda: streams(home, pipeline), "Spark was up")
        gate.broken = True
        opentab("generate", "--first-period", "2025-01", "--months", "1", "--events", "100", home=home)
        said, _ = pipeline.communicate(timeout=90)
        assert pipeline.returncode == 1, said
        assert "Traceback" not in said and KEY_ID not in said and SECRET not in said
        assert len(re.findall("^opentab: ", said, re.MULTILINE)) == 1, said
        gate.broken = False
        check_exact(home)


def test_a_look_that_met_a_commit_just_cleared_away_is_made_again(store: BucketServer, tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS + store.settings(tmp_path.name))
    for amount in ("1.00", "2.00"):
        bill(home, event("ann", amount))
    looks = 0

    def look(table: DeltaTable) -> int | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            table.create_checkpoint()
            for version in range(2):
                home.ledger.filesystem.delete_file(home.ledger.inside + commit_name(version))
        return table.transaction_version("nobody")  # to know that there is none, it reads the whole log

    assert (look_at(home.ledger / "journal", look), looks) == (None, 2)
    assert bill(home, event("ann", "3.00")).batch == 3


def test_a_file_of_several_parts_comes_back_as_it_was(store: BucketServer) -> None:
    place = Place(
        f"s3://{BUCKET}/parts", tomllib.loads(store.settings())["ledger"]["storage"] | {"aws_allow_http": "true"}
    )
    content = os.urandom(24 * 2**20)
    with (place / "large").create() as file:
        for at in range(0, len(content), 2**20):
            file.write(content[at : at + 2**20])
        assert file.tell() == len(content)
    assert (place / "large").read() == content
    assert (place.names(), (place / "large").exists(), (place / "other").exists()) == (["large"], True, False)
    assert SECRET not in repr(place) + str(place)


def test_credentials_may_come_from_the_environment(store: BucketServer, tmp_path: Path) -> None:
    settings = f'{SETTINGS}[ledger]\nuri = "s3://{BUCKET}/{tmp_path.name}"\n'
    home = new_home(tmp_path / "home", settings)
    environment = {
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    Producer(DirectoryLog(home.log_path)).append(f"{event('ann', '1.25')}\n".encode())
    opentab("run", "--once", home=home, **environment)
    (total,) = json_lines(opentab("totals", "--format", "json", home=home, **environment).stdout)
    assert total["total"] == "1.250000"


@pytest.mark.parametrize(
    ("settings", "environment", "fact"),
    [
        ('uri = "gs://bucket/ledger"', {}, "is not supported: commits are known to be safe"),
        ('uri = "s3://Bucket"', {}, "is no address of a bucket"),
        ('uri = "s3://bucket/../other"', {}, "is no address of a bucket"),
        ('uri = "s3://bucket"', {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, "two pipelines could commit the same batch"),
        ("storage.aws_s3_allow_unsafe_rename = true", {}, "only commits by conditional put are safe"),
        ('storage.aws_conditional_put = "disabled"', {}, "only commits by conditional put are safe"),
        ('storage.aws_secret_acces_key = "secret"', {}, "did you mean aws_secret_access_key?"),
        ("storage.aws_secret_access_key = 5", {}, "ledger.storage.aws_secret_access_key is wrong"),
        ('storage.aws_endpoint_url = "http://10.0.0.1"', {}, "is not encrypted"),
        ('storage.aws_endpoint_url = "me:secret@10.0.0.1"', {}, "is no address of a server"),
        ("storage = 5", {}, "must be a section"),
    ],
)
def test_what_would_be_unsafe_is_refused_before_anything_starts(
    settings: str, environment: dict[str, str], fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        new_home(tmp_path / "home", f"[ledger]\n{settings}\n")
    assert fact in str(refused.value)
    assert refused.value.hint
    assert "secret@" not in str(refused.value)


def race(home: Home, gate: CommitGate) -> list[BatchRecord | Fenced]:
    """Two pipelines bill the same events as batch 1 and send their commits before either is answered."""
    jobs = [open_job(home, run) for run in ("run-a", "run-b")]
    Producer(DirectoryLog(home.log_path)).append(f"{event('ann', '1.25')}\n".encode())
    gate.held = commit_name(1)

    def bill_one(job: Job) -> BatchRecord | Fenced:
        names = names_of(log_of(job), log_of(job).unread(job.offsets), 1)
        try:
            return job.bill(batch_of_segments(job, names, 1))
        except Fenced as fenced:
            return fenced

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(bill_one, jobs))


def commit_name(version: int) -> str:
    return f"/journal/_delta_log/{version:020d}.json"


def _position(url: str) -> int | None:
    """Where a server stands; None while its copy is being made."""
    answer = httpx.get(f"{url}/v1/overview")
    return int(answer.json()["position"]) if answer.status_code == 200 else None
