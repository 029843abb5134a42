"""Rejections on to a Kafka topic: whoever sends what cannot be billed hears of it where they listen.

A message is what `opentab rejections --format json` prints; its key is the place in the log. How far it got is
remembered by batch, so after a crash some may come again, with the same key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from opentab.ledger.journal import Journal
from opentab.ledger.rejections import rejection_as_json, rejection_rows
from opentab.log.topic import Topic
from opentab.log.topic_producer import Sender
from opentab.runtime.config import Home
from opentab.runtime.disk import sync
from opentab.runtime.kafka import KafkaSettings


class DeadLetters:
    """Publishes a home's rejections, batch after batch."""

    def __init__(self, home: Home, settings: KafkaSettings) -> None:
        self._topic = Topic(replace(settings, topic=home["kafka.rejections_topic"]))
        self._sender: Sender | None = None
        self._path = home.path / "sinks" / "rejections.json"

    def publish(self, journal: Journal) -> int:
        """Publish what was rejected since the last time; returns how much that was."""
        position = self._position()
        if journal.position < position:
            position = 0  # a ledger that was restored: all of it once more
        if journal.position == position:
            return 0
        upto = journal.position
        count = 0
        if any(record.rejections for record in journal.batches(after=position, upto=upto)):
            count = self._connected().send(_messages(journal, position, upto))
        self._remember(upto)
        return count

    def _connected(self) -> Sender:
        if self._sender is None:
            self._topic.create()
            self._sender = Sender(self._topic)
        return self._sender

    def _position(self) -> int:
        try:
            return int(json.loads(self._path.read_bytes())["position"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _remember(self, position: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._path.with_suffix(".new")
        aside.write_text(json.dumps({"position": position}), encoding="utf-8")
        sync(aside)
        aside.replace(self._path)


def dead_letters(home: Home) -> DeadLetters | None:
    """What publishes a home's rejections; None where nobody asked for it."""
    settings = home.kafka
    return DeadLetters(home, settings) if settings is not None and home["kafka.rejections_topic"] else None


def _messages(journal: Journal, after: int, upto: int) -> Iterator[tuple[bytes, bytes]]:
    for row in rejection_rows(journal, after=after, upto=upto):
        yield row["place"].encode(), json.dumps(rejection_as_json(row), ensure_ascii=False).encode()
