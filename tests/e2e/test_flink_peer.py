"""Flink beside us: its bill of a small topic is exact, with its state on the heap and in RocksDB."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from brokers import write
from opentab_tools.peers.flink import measure_flink
from opentab_tools.servers.broker import Broker

pytestmark = pytest.mark.skipif(
    os.environ.get("OPENTAB_TEST_PEERS") is None, reason="Flink is a large download: OPENTAB_TEST_PEERS=1 tests it"
)

WARM_EVENTS, EVENTS = 3_000, 5_000


def amount_micros(number: int) -> int:
    """Whole units and single millionths, every seventh a credit."""
    return (number * 1_000_003 % 9_999_991) * (-1 if number % 7 == 0 else 1)


def event(number: int) -> bytes:
    micros = amount_micros(number)
    whole, fraction = divmod(abs(micros), 1_000_000)
    return json.dumps(
        {
            "id": f"event-{number}",
            "time": f"2026-0{1 + number % 2}-15T10:00:00Z",
            "customer": f"customer, {number % 113}",
            "type": ("CALL", "DATA")[number % 2],
            "amount": f"{'-' if micros < 0 else ''}{whole}.{fraction:06d}",
        }
    ).encode()


def test_flinks_bill_is_exact_with_either_state(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        for topic, count in (("warm", WARM_EVENTS), ("events", EVENTS)):
            broker.create_topic(topic, partitions=2)
            write(broker, topic, [event(number) for number in range(count)])
        runs = [
            measure_flink(
                address=broker.address, topic="events", warm_topic="warm", state=state, scratch=tmp_path / state
            )
            for state in ("heap", "rocksdb")
        ]
    for run in runs:
        assert run.event_count == WARM_EVENTS
        assert run.sum_micros == sum(map(amount_micros, range(WARM_EVENTS)))
        assert run.measured_events == EVENTS
        assert run.measured_seconds > 0
        assert run.checkpoints > 0
        assert run.state_bytes > 0
        assert run.memory_bytes_max > 2**28
    assert [run.settings["state.backend.type"] for run in runs] == ["hashmap", "rocksdb"]
