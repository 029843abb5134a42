"""Kafka as the log: a real broker, the same commands, the same bill."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

import spark_event_log
from audit_ledger import Ledger, line
from brokers import secure
from ledgers import bill_ready
from opentab.audit.logs import Logs
from opentab.audit.raw import open_raw
from opentab.audit.recompute import recompute
from opentab.audit.verify import verify
from opentab.billing.adopt import adopt_log
from opentab.billing.bill import Job
from opentab.billing.clock import restart_clock
from opentab.billing.delivery import publish_rejections
from opentab.billing.log_check import join_log, open_checked_producer
from opentab.billing.source import open_source
from opentab.core.errors import ClockMismatch, ConfigError, LogError, LogMismatch, LogUnreachable
from opentab.core.money import format_micros
from opentab.core.periods import to_us
from opentab.core.records import BatchRecord
from opentab.ledger.journal import Journal
from opentab.ledger.rejections import rejection_rows
from opentab.ledger.totals import customer_totals
from opentab.log import open_producer, open_topic, topic_producer
from opentab.log.directory import Clock, wall_clock
from opentab.log.topic_producer import key_of
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.server.intake import Intake
from opentab.sinks.rejections import dead_letters
from opentab_tools.servers.broker import Broker
from opentab_tools.servers.jars import connector_jars
from processes import position, streams, wait_for
from product import event, json_lines, opentab

SMALL_BATCHES = "[pipeline]\nbatch_events_max = 2000\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def home_on(broker: Broker, path: Path, settings: str = "", topic: str | None = None) -> Home:
    """A home whose log is a topic of its own."""
    path.mkdir(exist_ok=True)
    uri = f'[log]\nuri = "kafka://{broker.address}/{topic or path.parent.name + path.name}"\n'
    (path / "opentab.toml").write_text(uri + settings)
    return config.load(path)


@pytest.fixture
def kafka_home(broker: Broker, tmp_path: Path) -> Home:
    return home_on(broker, tmp_path / "home")


def append(home: Home, *lines: str, partition: str | None = None) -> None:
    open_producer(home, partition).append("\n".join(lines).encode())


def bill_all(home: Home, *, accept_loss: bool = False, clock: Clock = wall_clock) -> Journal:
    """Bill what waits in the topic, as a start of the pipeline does, without Spark."""
    source = open_source(home, accept_loss=accept_loss)
    journal, log_id = join_log(home)
    job = Job(home, journal, source, run="run", log_id=log_id, clock=clock)
    source.open(job.offsets)
    bill_ready(job)
    source.close()
    return job.journal


def total(home: Home, customer: str = "emma") -> str:
    journal = Journal.open(home.ledger, home.identity)
    return format_micros(sum(one.amount_micros for one in customer_totals(journal, home.calendar, customer=customer)))


def check_log(home: Home, journal: Journal) -> list[str]:
    """What the audit finds wrong."""
    return [sample for check in verify(home, journal).checks for sample in check.samples]


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient(broker.client_options)


def add_partitions(broker: Broker, home: Home, count: int) -> None:
    topic = open_topic(home)
    assert topic is not None
    admin = admin_of(broker)
    admin.create_partitions([NewPartitions(topic.name, count)])[topic.name].result(timeout=30)


def lose(broker: Broker, home: Home, partition: int, before: int) -> None:
    """Let Kafka drop the messages before an offset, as retention does."""
    topic = open_topic(home)
    assert topic is not None
    place = TopicPartition(topic.name, partition, before)
    admin = admin_of(broker)
    for future in admin.delete_records([place]).values():
        future.result(timeout=30)


def test_the_whole_way(broker: Broker, tmp_path: Path) -> None:
    """Simulator, topic, Spark's own Kafka source, closings, late and bad events, the audit, the dead letters."""
    letters = '[kafka]\nrejections_topic = "the-whole-way-rejections"\npartitions = 3\n'
    event_log = spark_event_log.settings(tmp_path / "event-log")
    home = home_on(broker, tmp_path / "home", SMALL_BATCHES + letters + event_log)
    opentab("generate", "--events", "300", "--bad", "0.02", "--beyond", "0.01", "--until-final", home=home)
    opentab("run", "--once", home=home)
    spark_event_log.check(tmp_path / "event-log", home, rows=sum(open_source(home).ends().values()))
    verdict = json_lines(opentab("verify", "--format", "json", home=home).stdout)[0]
    assert verdict["agrees"] and verdict["not_yet_billed_segments"] == 0, verdict
    # The checkpoint is of no use to anyone: the journal knows the offsets.
    shutil.rmtree(home.checkpoint_path, ignore_errors=True)
    assert "nothing new in the log" in opentab("run", "--once", home=home).stderr

    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None and journal.position > 3
    rejected = {row["place"]: row["raw"] for row in rejection_rows(journal)}
    published = dict(read_all(broker, "the-whole-way-rejections"))
    assert len(rejected) > 10 and set(published) == {place.encode() for place in rejected}
    assert {json.loads(value)["reason"] for value in published.values()} >= {"not_json", "bad_amount"}

    events = opentab("trace", "2026-01", "emma", "--events", home=home, check=False)
    assert events.returncode in (0, 2), events.stderr
    lines = opentab("tail", "--no-follow", "-n", "4", home=home).stdout.splitlines()
    assert len(lines) == 4


def test_kafka_without_maven(broker: Broker, tmp_path: Path) -> None:
    """The jars that docs/kafka.md names are all that Spark lacks, and nothing is fetched."""
    jars = connector_jars()
    named = re.findall(
        r"`([a-z0-9-]+?)(?:_2\.13)?-[0-9.]+\.jar`", (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()
    )
    assert [re.sub(r"(_2\.13)?-[0-9.]+\.jar$", "", jar.name) for jar in jars] == sorted(named)
    given = f'[spark]\njars = "{",".join(map(str, jars))}"\n"jars.ivy" = "{tmp_path}/ivy"\n'
    home = home_on(broker, tmp_path / "home", f'[kafka]\nconnector = ""\n{given}')
    append(home, event("emma", "1.25"))
    opentab("run", "--once", home=home)
    assert total(home) == "1.250000"
    assert not (tmp_path / "ivy").exists()


def test_the_audit_counts_once_on_a_topic(kafka_home: Home) -> None:
    """A place is an offset, and batches count one more; what is rejected for the sake of others is read again."""
    first, other = line(id="a", amount="1").decode(), line(id="a", amount="2").decode()
    append(kafka_home, line().decode(), first, first, partition="0")
    append(kafka_home, line(id="b").decode(), other, partition="0")
    append(kafka_home, other, first, partition="1")
    made = Ledger(kafka_home.path)
    empty = BatchRecord(
        batch=1, run="r", started_us=0, committed_us=0, partitions={}, taken={"0": (1, 3)}, watermark_us=None,
        final_us=None, newest_us=None, event_count=2, sum_micros="0", entry_rows=0, rejections={}, input_bytes=0,
        rules=made.rules,
    )  # fmt: skip
    batches = [empty, msgspec.structs.replace(empty, batch=2, taken={"0": (4, 5), "1": (1, 2)})]
    with duckdb.connect() as con:
        recount = recompute(con, Logs(open_raw(kafka_home)), batches)
        refused = con.execute("SELECT batch, place, reason, raw, partition, number, byte FROM refused ORDER BY ALL")
        assert refused.fetchall() == [
            (2, "0/4", "conflicting_duplicate", other.encode(), "0", 4, 0),
            (2, "1/0", "conflicting_duplicate", other.encode(), "1", 0, 0),
        ]
        places = con.execute("SELECT partition, number, byte, id FROM keyed ORDER BY ALL").fetchall()
        assert places == [
            ("0", 1, 0, "a"), ("0", 2, 0, "a"), ("0", 3, 0, "b"), ("0", 4, 0, "a"), ("1", 0, 0, "a"), ("1", 1, 0, "a"),
        ]  # fmt: skip
    counted = [(facts.events, facts.duplicates, facts.without_id, facts.lines) for facts in recount.facts.values()]
    assert counted == [(2, 1, 1, 3), (1, 1, 0, 4)] and recount.troubles == []


def read_all(broker: Broker, topic: str) -> list[tuple[bytes, bytes]]:
    consumer = Consumer(broker.client_options | {"group.id": "test", "enable.auto.commit": False})
    partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    places = [TopicPartition(topic, number, 0) for number in partitions]
    count = sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
    consumer.assign(places)
    messages = consumer.consume(count, timeout=60)
    consumer.close()
    return [(message.key(), message.value()) for message in messages]


def test_a_customer_has_one_partition(broker: Broker, kafka_home: Home) -> None:
    append(kafka_home, *(event(f"customer {n % 20}") for n in range(200)))
    topic = open_topic(kafka_home)
    assert topic is not None
    ends = topic.next_offsets()
    found = topic.read({number: (0, end) for number, end in ends.items()})
    by_partition = {number: {key_of(m.value) for m in messages} for number, messages in found.items()}
    assert sum(map(len, by_partition.values())) == 20
    assert sum(1 for keys in by_partition.values() if keys) > 1
    assert all(message.arrived_us > 0 for messages in found.values() for message in messages)


@pytest.mark.parametrize(
    "line, key",
    [
        (event("emma").encode(), b"emma"),
        ('{"specversion":"1.0","subject":"ünal","data":{}}'.encode(), "ünal".encode()),
        (b'{"customer":1}', None),
        (b"no json", None),
        (b"\xff\xfe", None),
        (b'{"customer":""}', None),
    ],
)
def test_keys(line: bytes, key: bytes | None) -> None:
    assert key_of(line) == key


def test_batches_go_on_from_the_journal(kafka_home: Home) -> None:
    for amount in ("1.00", "2.00", "4.00"):
        append(kafka_home, event(amount=amount), "not json", "")
        journal = bill_all(kafka_home)
    assert journal.position == 3
    assert total(kafka_home) == "7.000000"
    assert check_log(kafka_home, journal) == []
    places = [row["place"] for row in rejection_rows(journal)]
    topic = open_topic(kafka_home)
    assert topic is not None
    for place in places:
        number, offset = map(int, place.split("/"))
        assert topic.read({number: (offset, offset + 1)})[number][0].value == b"not json"


def test_a_message_may_hold_line_breaks(kafka_home: Home, broker: Broker) -> None:
    topic = open_topic(kafka_home)
    assert topic is not None
    topic.create()
    producer = Producer(broker.client_options)
    producer.produce(topic.name, event(amount="3.00").replace(",", ",\n").encode(), partition=0)
    producer.produce(topic.name, b'{"a":\n', partition=0)
    producer.produce(topic.name, None, key=b"a tombstone", partition=1)
    producer.flush(30)
    journal = bill_all(kafka_home)
    assert total(kafka_home) == "3.000000"
    assert [row["raw"] for row in rejection_rows(journal)] == [b'{"a":\n']
    assert check_log(kafka_home, journal) == []


def test_partitions_are_added(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 1\n")
    append(home, event(amount="1.00"))
    bill_all(home)
    add_partitions(broker, home, 3)
    for number in ("0", "1", "2"):
        wait_for(lambda number=number: _takes(home, number), "the new partition is known")
    journal = bill_all(home)
    assert total(home) == "31.000000"
    last = journal.last()
    assert last is not None and {name: state.segment for name, state in last.partitions.items()} == {
        "0": 2,
        "1": 1,
        "2": 1,
    }
    assert check_log(home, journal) == []


def _takes(home: Home, partition: str) -> bool:
    try:
        append(home, event(amount="10.00"), partition=partition)
    except Exception:
        return False
    return True


def stamped(broker: Broker, home: Home, *messages: tuple[int, datetime, str]) -> None:
    """Put messages into partitions of a topic whose producers stamp them, with stamps of our choice."""
    topic = open_topic(home)
    assert topic is not None
    config = {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": str(2**62),
        "retention.ms": "-1",  # else the broker drops what is stamped more than a week ago, at a moment of its own
    }
    if not topic._found():
        made = NewTopic(topic.name, num_partitions=2, replication_factor=1, config=config)
        admin = admin_of(broker)
        admin.create_topics([made])[topic.name].result(timeout=30)
    failed: list[object] = []
    producer = Producer(broker.client_options)
    for number, at, value in messages:
        producer.produce(
            topic.name, value.encode(), partition=number, timestamp=int(at.timestamp() * 1000),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
        assert producer.flush(30) == 0 and not failed, failed


def billed(home: Home) -> int:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return sum(record.amount_micros for record in journal.batches()) // 1_000_000


def test_messages_that_are_stamped_ahead_are_held_back(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home")
    now = datetime.now(UTC)
    later = now + timedelta(hours=2)
    stamped(broker, home, (0, now, event(amount="1")), (1, now, event(amount="2")), (1, later, event(amount="4")))
    stamped(broker, home, (1, now, event(amount="8")), (0, now, event(amount="16")))
    source = open_source(home)
    clock = [now]
    journal = Journal.create(home.ledger, home.identity)
    job = Job(home, journal, source, run="run", clock=lambda: clock[0])
    source.open(job.offsets)
    bill_ready(job)
    assert job.offsets == {"0": 2, "1": 1} and billed(home) == 19
    assert "log partition '1' is held back" in str(job.trouble())
    clock[0] = now + timedelta(minutes=61)
    bill_ready(job)
    assert job.offsets == {"0": 2, "1": 3} and billed(home) == 31
    assert job.trouble() is None
    source.close()
    assert check_log(home, journal) == []


def test_a_topic_whose_stamps_were_wrong_goes_on_after_a_restart(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home")
    now, wrong = datetime.now(UTC), datetime(2099, 1, 1, tzinfo=UTC)
    one, two, three, four = (event().replace("{", f'{{"id": "{name}", ', 1) for name in ("1", "2", "3", "4"))
    stamped(broker, home, (0, now, one))
    opened = open_producer(home, "0")
    stamped(broker, home, (0, wrong, two))
    bill_all(home, clock=lambda: wrong)  # as an earlier version did
    stamped(broker, home, (0, wrong, three))
    with patch.object(topic_producer, "CLOCK_SECONDS", 0.0), pytest.raises(ClockMismatch):
        opened.append(one.encode())
    with pytest.raises(ClockMismatch, match=r"partition 0 of topic .* ahead of this machine's clock"):
        append(home, one, partition="0")
    append(home, four, partition="1")
    restart_clock(home)
    append(home, one, two, three, event(time=(now + timedelta(days=300)).isoformat()), partition="0")
    elsewhere = home_on(broker, tmp_path / "elsewhere", topic=home.kafka.topic if home.kafka else None)
    append(elsewhere, four, partition="0")
    journal = bill_all(home)
    last = journal.last()
    assert last is not None and (last.event_count, last.duplicates) == (2, 4)
    assert last.rejections == {"time_in_future": 1}
    assert last.partitions["0"].arrived_us < to_us(now + timedelta(hours=1))
    assert billed(home) == 4
    assert check_log(home, journal) == []


def test_a_topic_that_was_silent_for_long_is_no_proof_of_the_clock(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home")
    stamped(broker, home, (0, datetime.now(UTC) - timedelta(days=31), event()))
    with pytest.raises(ClockMismatch, match=r"log\.silence_max later"):
        append(home, event())
    append(home.with_setting("log.silence_max", "32d"), event())
    append(home, event(), partition="1")


def test_an_idle_partition_holds_nobody_back(broker: Broker, tmp_path: Path) -> None:
    """It is idle by the log's own clock: the arrival of later messages elsewhere."""
    home = home_on(broker, tmp_path / "home", '[kafka]\npartitions = 2\n[pipeline]\nidle_after = "1ms"\n')
    append(home, event(time="2026-01-05T00:00:00Z"), partition="0")
    bill_all(home)
    append(home, event(time="2026-03-05T00:00:00Z"), partition="1")
    journal = bill_all(home)
    last = journal.last()
    assert last is not None and last.partitions["0"].idle and not last.partitions["1"].idle
    assert check_log(home, journal) == []


def test_a_ledger_of_yesterday_reads_on(kafka_home: Home, tmp_path: Path) -> None:
    """Restored to an earlier position, with the topic still there, it comes to the same bill."""
    append(kafka_home, event(amount="1.00"), event("ann", "8.00"))
    bill_all(kafka_home)
    shutil.copytree(kafka_home.ledger.path, tmp_path / "yesterday")
    append(kafka_home, event(amount="2.00"), "no event")
    bill_all(kafka_home)
    append(kafka_home, event(amount="4.00"))
    bill_all(kafka_home)
    shutil.rmtree(kafka_home.ledger.path)
    shutil.copytree(tmp_path / "yesterday", kafka_home.ledger.path)
    journal = bill_all(kafka_home)
    assert (journal.position, total(kafka_home), total(kafka_home, "ann")) == (2, "7.000000", "8.000000")
    assert check_log(kafka_home, journal) == []


def test_other_cores_and_partitions_on_the_same_home(broker: Broker, tmp_path: Path) -> None:
    """Nothing is migrated: the old pipeline ends, a new one with other measures starts, the bill is exact."""
    for cores, partitions in ((1, 1), (2, 3)):
        cluster = f'[kafka]\npartitions = 1\n[spark]\nmaster = "local[{cores}]"\n'
        home = home_on(broker, tmp_path / "home", SMALL_BATCHES + cluster)
        if partitions > 1:
            add_partitions(broker, home, partitions)
        opentab("generate", "--events", "300", "--first-period", f"2026-0{cores}", "--months", "1", home=home)
        opentab("run", "--once", home=home)
    verdict = json_lines(opentab("verify", "--format", "json", home=home).stdout)[0]
    assert verdict["agrees"] and verdict["not_yet_billed_segments"] == 0, verdict
    journal = Journal.open(home.ledger, home.identity)
    last = journal.last() if journal else None
    assert last is not None and len(last.partitions) == 3


def test_lost_events_stop_the_pipeline(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 1\n")
    append(home, event(amount="1.00"))
    bill_all(home)
    append(home, *(event(amount="1.00") for _ in range(5)))
    lose(broker, home, 0, 3)
    done = opentab("run", "--once", home=home, check=False)
    assert done.returncode == 1
    assert "has lost events: partition 0 begins at offset 3, the journal goes on from 1" in done.stderr
    assert "--accept-loss" in done.stderr
    journal = bill_all(home, accept_loss=True)
    assert total(home) == "4.000000"
    assert "batch 2, log partition '0': no batch took the messages 2 to 3" in check_log(home, journal)


def test_a_topic_that_ends_before_the_journal(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 1\n")
    append(home, event(), event())
    bill_all(home)
    source = open_source(home)
    with pytest.raises(LogError, match="ends at offset 2, the journal is at 3; is it another topic"):
        source.open({"0": 3})
    source.close()


def test_a_topic_that_was_deleted_and_made_again_is_another_log(broker: Broker, tmp_path: Path) -> None:
    """Refilled past the journal's offsets, it would be taken for the old one."""
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 1\n")
    append(home, event(amount="1.00"), event(amount="1.00"))
    positions = {"0": 2}
    assert bill_all(home).position == 1
    running = open_source(home)
    running.open(positions)
    _, log_id = join_log(home)
    topic = open_topic(home)
    assert topic is not None
    admin = admin_of(broker)
    admin.delete_topics([topic.name])[topic.name].result(timeout=30)
    wait_for(lambda: topic.find_id() is None, "the topic was gone")
    with pytest.raises(LogMismatch, match="is a topic that does not exist"):
        open_checked_producer(home)
    wait_for(lambda: _made_anew(home), "the topic was made anew")
    append(home, *(event(amount="8.00") for _ in range(4)))

    with pytest.raises(LogMismatch, match="is not the log any more that this pipeline began to read"):
        running.check_id(log_id)
    running.close()
    done = opentab("run", "--once", home=home, check=False)
    assert done.returncode == 2
    assert "is billed from log kafka:" in done.stderr and "opentab log adopt kafka://" in done.stderr
    intake = Intake(home)
    with pytest.raises(LogMismatch, match="is billed from log kafka:"):
        intake.append([event().encode()]).result(timeout=60)
    intake.close()

    done = opentab("log", "adopt", home["log.uri"], home=home)
    assert "batch 2 records the move" in done.stdout and "now set" not in done.stdout
    journal = bill_all(home)
    assert total(home) == "35.000000"  # 2.00 of the old topic; 1.00 and four times 8.00 of the new one
    (wrong,) = check_log(home, journal)
    assert wrong.startswith("batch 1 cannot be recomputed: their log kafka:") and wrong.endswith(
        "is gone or cannot be read"
    )


def test_a_ledger_moves_to_another_topic(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 2\n")
    append(home, event(amount="1.00"), "not json", event("ann", "2.00", "2026-02-01T00:00:00Z"))
    before = bill_all(home).last()
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 1\n", topic=f"{tmp_path.name}-second")
    append(home, event(amount="4.00"), "nor this")
    lose(broker, home, 0, 1)  # a log is read from where it begins
    append(home, event(amount="8.00"))
    adopted = adopt_log(home, home["log.uri"], same_offsets=False)
    assert before is not None and (adopted.batch, adopted.before_id) == (2, before.log_id)
    journal = bill_all(home)
    last = journal.last()
    assert last is not None and last.watermark_us == before.watermark_us
    assert {name: state.segment for name, state in last.partitions.items()} == {"0": 3}
    assert total(home) == "9.000000"
    assert check_log(home, journal) == []


def test_a_ledger_moves_from_a_directory_to_a_topic(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    home = config.load(tmp_path / "home")
    append(home, event(amount="1.00"), "not json")
    bill_all(home)
    home = home_on(broker, tmp_path / "home")
    append(home, event(amount="2.00"))
    adopt_log(home, home["log.uri"], same_offsets=False)
    journal = bill_all(home)
    assert total(home) == "3.000000"
    assert check_log(home, journal) == []


def _made_anew(home: Home) -> bool:
    try:
        append(home, event())
    except LogError:
        return False
    return True


def test_a_new_home_begins_with_what_there_is(broker: Broker, tmp_path: Path) -> None:
    """Of one partition retention has left a part, of another one nothing."""
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 2\n")
    for partition in ("0", "1"):
        append(home, *(event(amount="1.00") for _ in range(5)), partition=partition)
    lose(broker, home, 0, 2)
    lose(broker, home, 1, 5)
    opentab("run", "--once", home=home)
    assert total(home) == "3.000000"
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None and check_log(home, journal) == []


def test_a_new_topic_that_a_broker_learns_of_late(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 3\n")
    topic = open_topic(home)
    assert topic is not None
    before = AdminClient(topic.settings.client()).list_topics(timeout=5)  # what a broker answers that is behind
    real, stale = AdminClient.list_topics, [before, before, before]

    def list_topics(client: AdminClient, *args: Any, **more: Any) -> Any:
        return stale.pop() if stale else real(client, *args, **more)

    with patch.object(AdminClient, "list_topics", list_topics):
        assert topic.create() and topic.partitions() == [0, 1, 2]


def test_only_committed_messages_count(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 1\n")
    topic = open_topic(home)
    assert topic is not None
    topic.create()
    producer = Producer(broker.client_options | {"transactional.id": "test", "transaction.timeout.ms": 20_000})
    producer.init_transactions(30)
    for amount, keep in (("1.00", True), ("2.00", False), ("4.00", True)):
        producer.begin_transaction()
        producer.produce(topic.name, event(amount=amount).encode())
        producer.flush(30)
        if amount == "4.00":
            # Not committed yet: it is not there.
            bill_all(home)
            assert total(home) == "1.000000"
        (producer.commit_transaction if keep else producer.abort_transaction)(30)
    journal = bill_all(home)
    assert total(home) == "5.000000"
    assert check_log(home, journal) == []
    # Behind the last event stands a mark that is no message, and it is passed, too.
    assert bill_all(home).position == journal.position


def test_dead_letters_are_published_once(broker: Broker, tmp_path: Path) -> None:
    home = home_on(broker, tmp_path / "home", '[kafka]\nrejections_topic = "published-once"\n')
    letters = dead_letters(home)
    append(home, "one", event())
    bill_all(home)
    assert publish_rejections(home, letters) == 1
    assert publish_rejections(home, letters) == 0
    append(home, event())
    bill_all(home)
    assert publish_rejections(home, letters) == 0
    append(home, "two", '{"customer":"emma"}')
    bill_all(home)
    assert publish_rejections(home, dead_letters(home)) == 2
    assert sorted(json.loads(value)["raw"] for _, value in read_all(broker, "published-once")) == [
        "one",
        "two",
        '{"customer":"emma"}',
    ]


def test_events_over_http_go_to_the_topic(kafka_home: Home) -> None:
    intake = Intake(kafka_home)
    intake.check_room()
    intake.append([event(amount="1.00").encode(), event(amount="2.00").encode()]).result(timeout=60)
    intake.close()
    bill_all(kafka_home)
    assert total(kafka_home) == "3.000000"


def test_tls_and_a_password(tmp_path: Path) -> None:
    security = secure(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "password").write_text(security.password + "\n")
    with Broker(tmp_path / "broker", security=security) as broker:
        reached = (
            f'[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_username = "{security.username}"\n'
            f'sasl_password_file = "password"\ntls_ca = "{security.ca_path}"\npartitions = 2\n'
        )
        home = home_on(broker, tmp_path / "home", SMALL_BATCHES + reached)
        opentab("ingest", home=home, stdin=f"{event(amount='1.00')}\n{event('ann', '2.00')}\n")
        opentab("run", "--once", home=home)
        assert total(home) == "1.000000"
        assert json_lines(opentab("verify", "--format", "json", home=home).stdout)[0]["agrees"]

        (home.path / "password").write_text("wrong")
        done = opentab("ingest", home=home, stdin=event(), check=False)
        assert done.returncode == 1 and "Kafka does not answer" in done.stderr
        assert "wrong" not in done.stderr and security.password not in done.stderr


def test_the_broker_is_silent_then_killed_and_comes_back(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    with Broker(tmp_path / "broker") as broker:
        home = home_on(broker, tmp_path / "home", "[kafka]\npartitions = 2\n")
        append(home, event(amount="1.00"))
        pipeline = start("run", home=home)
        wait_for(lambda: streams(home, pipeline), "the pipeline streams")
        wait_for(lambda: position(home) == 1, "the first event is billed")
        with broker.frozen():
            wait_for(lambda: "Kafka does not answer" in (read_heartbeat(home.ledger).trouble or ""), "that is told")  # type: ignore[union-attr]
        wait_for(lambda: read_heartbeat(home.ledger).trouble is None, "the broker answers")  # type: ignore[union-attr]
        broker.kill()
        with pytest.raises(LogUnreachable, match="Kafka does"):
            append(home, event(amount="2.00"))
        broker.start()
        append(home, event(amount="4.00"))
        wait_for(lambda: position(home) > 1, "the pipeline goes on by itself")
        assert pipeline.poll() is None
        pipeline.terminate()
        assert pipeline.wait(timeout=60) == 0
        assert total(home) in ("5.000000", "7.000000")  # what was not acknowledged may be there
        assert json_lines(opentab("verify", "--format", "json", home=home).stdout)[0]["agrees"]


def test_brokers_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "opentab.toml").write_text('[log]\nuri = "kafka://127.0.0.1:1/events"\n')
    done = opentab("ingest", home=tmp_path, stdin=event(), check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("opentab: Kafka does not answer for topic 'events' at 127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("uri", ["kafka://", "kafka://broker/topic", "kafka://broker:9092/", "kafka:events"])
def test_a_uri_that_names_no_topic(tmp_path: Path, uri: str) -> None:
    (tmp_path / "opentab.toml").write_text(f'[log]\nuri = "{uri}"\n')
    with pytest.raises(ConfigError, match="names no Kafka topic"):
        config.load(tmp_path)


def test_options_pass_through(tmp_path: Path) -> None:
    """Any option of either client, in its own words; a password with quotes reaches Java whole."""
    (tmp_path / "opentab.toml").write_text(
        '[log]\nuri = "kafka://one:9092,two:9093/e"\n[kafka]\nsecurity_protocol = "SASL_PLAINTEXT"\n'
        'sasl_mechanism = "SCRAM-SHA-512"\nsasl_username = "ann"\nsasl_password_file = "password"\n'
        '[kafka.client]\n"socket.timeout.ms" = 5000\n[kafka.spark]\n"max.poll.records" = 9\n'
    )
    (tmp_path / "password").write_text('say "please"\\\n')
    kafka = config.load(tmp_path).kafka
    assert kafka is not None
    assert kafka.client() == {
        "bootstrap.servers": "one:9092,two:9093",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": 'say "please"\\',
        "socket.timeout.ms": "5000",
    }
    spark = kafka.spark()
    assert spark["kafka.max.poll.records"] == "9"
    assert spark["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="say \\"please\\"\\\\";'
    )
    assert "please" not in repr(kafka)


OAUTH = """
[log]
uri = "kafka://one:9092/e"
[kafka]
security_protocol = "SASL_SSL"
sasl_mechanism = "OAUTHBEARER"
[kafka.options]
"client.id" = "billing"
"sasl.oauthbearer.token.endpoint.url" = "https://login.example.com/token"
[kafka.client]
"sasl.oauthbearer.method" = "oidc"
"sasl.oauthbearer.client.id" = "ann"
"sasl.oauthbearer.client.secret" = "please"
[kafka.spark]
"sasl.jaas.config" = 'org.example.LoginModule required clientSecret="please";'
"client.id" = "spark"
"""
KERBEROS = """
[log]
uri = "kafka://one:9092/e"
[kafka]
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "GSSAPI"
[kafka.options]
"sasl.kerberos.service.name" = "kafka"
[kafka.client]
"sasl.kerberos.keytab" = "/etc/keytab"
"""


def test_options_for_both_clients_and_mechanisms_without_a_password(tmp_path: Path) -> None:
    (tmp_path / "opentab.toml").write_text(OAUTH)
    kafka = config.load(tmp_path).kafka
    assert kafka is not None
    same = {
        "bootstrap.servers": "one:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
    }
    own = {name: f"sasl.oauthbearer.{name.replace('_', '.')}" for name in ("method", "client_id", "client_secret")}
    assert kafka.client() == {
        **same, "client.id": "billing", own["method"]: "oidc", own["client_id"]: "ann", own["client_secret"]: "please",
    }  # fmt: skip
    assert kafka.spark() == {
        **{f"kafka.{name}": value for name, value in same.items()},
        "kafka.client.id": "spark",  # its own table comes last
        "kafka.sasl.jaas.config": 'org.example.LoginModule required clientSecret="please";',
    }
    assert "please" not in repr(kafka)
    AdminClient(kafka.client())  # refuses names that it does not know

    (tmp_path / "opentab.toml").write_text(KERBEROS)
    kafka = config.load(tmp_path).kafka
    assert kafka is not None
    assert {name for name in kafka.client() if "sasl" in name} == {
        "sasl.mechanism", "sasl.kerberos.service.name", "sasl.kerberos.keytab"
    }  # fmt: skip
    assert {name for name in kafka.spark() if "sasl" in name} == {
        "kafka.sasl.mechanism", "kafka.sasl.kerberos.service.name"
    }  # fmt: skip


def test_a_connector_that_was_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    """Spark's Ivy trusts what lies in its cache."""
    kept = Path.home() / ".ivy2.5.2"
    shutil.copytree(kept, tmp_path / "ivy")
    (tmp_path / "opentab.toml").write_text(
        f'[log]\nuri = "kafka://127.0.0.1:1/e"\n[spark]\n"jars.ivy" = "{tmp_path / "ivy"}"\n'
    )
    start = (
        "import sys; from pathlib import Path; from opentab.billing.session import open_session;"
        " from opentab.core.errors import MachineError; from opentab.runtime import config\n"
        "try: open_session(config.load(Path(sys.argv[1]))).stop(); print('started')\n"
        "except MachineError as error: print(error)"
    )
    command = [sys.executable, "-c", start, str(tmp_path)]
    assert "started" in subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
    (jar,) = (tmp_path / "ivy" / "cache").rglob("spark-sql-kafka-0-10_2.13-4.0.0.jar")
    jar.write_bytes(jar.read_bytes() + b"\0")
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
    assert "spark-sql-kafka-0-10_2.13-4.0.0.jar was fetched, and is not what was published" in said
