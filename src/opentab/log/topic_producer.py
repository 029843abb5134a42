"""Events into a Kafka topic: one message an event, keyed by its customer, each there once.

The producer is idempotent, so a message that Kafka's client sends again is not there twice. A customer's events go
to one partition and keep their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from opentab.core.errors import ClockMismatch, InputError, LogUnreachable
from opentab.core.records import Spot
from opentab.log.clock import Restart, mismatch
from opentab.log.topic import Topic
from opentab.runtime.kafka import KafkaSettings, silent_logger

DELIVERY_SECONDS = 30
WAITING_MESSAGES_MAX = 500_000
CLOCK_SECONDS = 10.0  # how often the brokers' stamps are held against this machine's clock

Delivered = Callable[[KafkaError | None, Message], None]


class _Keyed(msgspec.Struct, gc=False):
    customer: str | None = None
    subject: str | None = None


_decode_key = msgspec.json.Decoder(_Keyed).decode


def key_of(line: bytes) -> bytes | None:
    """The customer whose event this is, as far as it can be told; a line that cannot be billed has none."""
    try:
        keyed = _decode_key(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    customer = keyed.customer if keyed.customer is not None else keyed.subject
    return customer.encode("utf-8", "surrogatepass") if customer else None


class Sender:
    """Sends messages to a topic. When `send` returns, Kafka has them for good."""

    def __init__(self, topic: Topic, partition: int = -1) -> None:
        """With a `partition` all go there; else a key's messages go where Kafka's own producers put them."""
        self._topic = topic
        self._partition = partition
        self._failed: KafkaError | None = None
        self._producer = self._connect()

    def send(self, messages: Iterable[tuple[bytes | None, bytes]], *, spots: dict[int, Spot] | None = None) -> int:
        """Send keys and values; returns how many once Kafka has them.

        With `spots` it notes there where each stands, by its place among them.
        """
        self._failed = None
        count = 0
        for key, value in messages:
            self._produce(key, value, self._delivered if spots is None else partial(self._noted, spots, count))
            count += 1
        left = self._producer.flush(DELIVERY_SECONDS)
        if left or self._failed is not None:
            reason = self._failed.str() if self._failed else f"{left:,} messages were not taken in time"
            # What this producer still holds must not arrive behind our back.
            self._producer.purge()
            self._producer = self._connect()
            raise LogUnreachable(
                f"Kafka did not take all messages for {self._topic}: {reason}",
                hint="some may be there: send them again with the same ids",
                retry_helps=True,
            )
        return count

    def _produce(self, key: bytes | None, value: bytes, delivered: Delivered) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic.name, value=value, key=key, partition=self._partition, on_delivery=delivered
                )
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                self._failed = error.args[0]
                return

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed = error

    def _noted(self, spots: dict[int, Spot], index: int, error: KafkaError | None, message: Message) -> None:
        self._delivered(error, message)
        if error is None:
            spots[index] = Spot(str(message.partition()), message.offset() or 0, 0)

    def _connect(self) -> Producer:
        options: dict[str, Any] = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "compression.type": "lz4",
            "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
            "queue.buffering.max.messages": WAITING_MESSAGES_MAX,
            "partitioner": "murmur2_random",  # where Kafka's own producers put the same customer
        }
        return Producer(self._topic.settings.client() | options, logger=silent_logger)


class TopicProducer:
    """Appends to the topic that is the log. When `append` returns, Kafka has the lines for good."""

    def __init__(
        self, settings: KafkaSettings, partition: str | None = None, *,
        silence_max: timedelta | None = None, restart: Callable[[], Restart | None] = lambda: None,
    ) -> None:  # fmt: skip
        """With `partition`, a number, everything goes there; else a customer's events go where its name leads."""
        if partition is not None and not partition.isdecimal():
            raise InputError(
                f"{partition!r} is no partition of a Kafka topic",
                hint="give its number, or leave out --partition: the customer decides",
            )
        topic = Topic(settings)
        topic.create()
        if partition is not None and int(partition) not in topic.partitions():
            raise InputError(
                f"{topic} has no partition {partition}", hint=f"it has {len(topic.partitions())}, counted from 0"
            )
        self.partition = partition or "by customer"
        self._sender = Sender(topic, -1 if partition is None else int(partition))
        self._topic = topic
        self._numbers = None if partition is None else {int(partition)}
        self._silence_max = silence_max
        self._restart = restart
        self._checked = float("-inf")
        self._check_clock()

    def append(self, body: bytes) -> int:
        """Send whole lines, one message each, and return how many once Kafka has them."""
        self._check_clock()
        lines = (line for line in body.split(b"\n") if line.strip())
        return self._sender.send((key_of(line), line) for line in lines)

    def put(self, lines: Sequence[bytes]) -> list[Spot]:
        """Send lines, one message each, and return where each stands, once Kafka has them."""
        self._check_clock()
        spots: dict[int, Spot] = {}
        self._sender.send(((key_of(line), line) for line in lines), spots=spots)
        return [spots[index] for index in range(len(lines))]

    def _check_clock(self) -> None:
        """Raise if the stamps in the topic contradict this machine's clock; now and then will do.

        Brokers that do not answer say nothing: the messages themselves will be waited for longer.
        """
        if time.monotonic() - self._checked > CLOCK_SECONDS:
            with suppress(LogUnreachable):
                self._check_stamps(time.time_ns() // 1000)
            self._checked = time.monotonic()

    def _check_stamps(self, now_us: int) -> None:
        newest = self._topic.newest_stamps()
        if self._numbers is not None:
            newest = {number: stamp for number, stamp in newest.items() if number in self._numbers}
        if not newest or self._wrong({number: stamp_us for number, (_, stamp_us) in newest.items()}, now_us) is None:
            return
        restart = self._restart() or Restart(0, {})
        settled = {}
        for number, (offset, stamp_us) in newest.items():
            if offset < restart.upto.get(str(number), 0):
                stamp_us = restart.at_us
            elif self._wrong({number: stamp_us}, now_us) is not None:
                # A last message that is stamped right shows that the brokers' clock is right again.
                stamp_us = self._topic.last_stamp(number) or stamp_us
            settled[number] = stamp_us
        wrong = self._wrong(settled, now_us)
        if wrong is not None:
            raise wrong

    def _wrong(self, stamps_us: Mapping[int, int], now_us: int) -> ClockMismatch | None:
        """What is wrong with the last arrivals of partitions; some may be silent for as long as their customers are."""
        number = max(stamps_us, key=lambda number: stamps_us[number])
        what = f"partition {number} of {self._topic}"
        return mismatch(what, stamps_us[number], now_us, self._silence_max)
