"""The raw events as readable lines, as they arrive in the log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from opentab.core.money import format_micros
from opentab.core.periods import format_us
from opentab.log import open_topic
from opentab.log.directory import DirectoryLog
from opentab.log.topic import Topic
from opentab.runtime.config import Home
from opentab.runtime.terminal import DIM, RED, paint, printable
from opentab.wire.reference import Refusal, is_blank, judge

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log and where it stands."""

    place: str
    arrived_us: int
    raw: bytes


def follow_log(home: Home, *, lines: int, follow: bool, sleep: Callable[[float], None] = time.sleep) -> Iterator[Line]:
    """The last `lines` lines of the log, then those that arrive."""
    topic = open_topic(home)
    if topic is not None:
        yield from _follow_topic(topic, lines, follow=follow, sleep=sleep)
        return
    log = DirectoryLog(home.log_path)
    newest = {name: numbers[-1] for name, numbers in log.pending().items()}
    yield from _last_lines(log, newest, lines)
    while follow:
        for name, numbers in log.pending().items():
            for number in range(newest.get(name, 0) + 1, numbers[-1] + 1):
                yield from _lines(log, name, number)
            newest[name] = numbers[-1]
        sleep(POLL_SECONDS)


def readable(line: Line, home: Home) -> str:
    """One line for people: when, who, what, how much; or why it cannot be billed."""
    verdict = judge(line.raw, arrived_us=line.arrived_us, rules=home.rules, calendar=home.calendar)
    if isinstance(verdict, Refusal):
        raw = printable(line.raw)
        shown = raw if len(raw) <= 100 else raw[:99] + "…"
        return f"{paint(verdict.reason.value, RED)}  {shown}  {paint(line.place, DIM)}"
    when = format_us(verdict.at_us)
    amount = format_micros(verdict.amount_micros)
    who = printable(verdict.customer)
    return f"{when}  {who:<12}  {verdict.type:<8}  {amount:>14}  {paint(line.place, DIM)}"


def _follow_topic(topic: Topic, lines: int, *, follow: bool, sleep: Callable[[float], None]) -> Iterator[Line]:
    ends = topic.ends()
    # The newest lines may all be of one partition.
    positions = {number: max(ends.first[number], end - lines) for number, end in ends.next.items()}
    found = sorted(_messages(topic, positions, ends.next), key=lambda line: line.arrived_us)
    yield from found[max(0, len(found) - lines) :]
    positions = dict(ends.next)
    while follow:
        upto = topic.next_offsets()
        begin = {number: positions.get(number, 0) for number in upto}
        yield from _messages(topic, begin, upto)
        positions = dict(upto)
        sleep(POLL_SECONDS)


def _messages(topic: Topic, begin: Mapping[int, int], end: Mapping[int, int]) -> Iterator[Line]:
    ranges = {number: (begin[number], end[number]) for number in end if begin[number] < end[number]}
    for number, messages in topic.read(ranges).items() if ranges else ():
        for message in messages:
            if not is_blank(message.value):
                yield Line(f"{number}/{message.offset}", message.arrived_us, message.value)


def _last_lines(log: DirectoryLog, newest: dict[str, int], count: int) -> Iterator[Line]:
    found: list[Line] = []
    for name, last in newest.items():
        lines: deque[Line] = deque()
        number = last
        while number > 0 and len(lines) < count and log.find(name, number):
            lines.extendleft(reversed(list(_lines(log, name, number))))
            number -= 1
        found += lines
    found.sort(key=lambda line: line.arrived_us)
    yield from found[max(0, len(found) - count) :]


def _lines(log: DirectoryLog, name: str, number: int) -> Iterator[Line]:
    segment = log.read(name, number)
    at = segment.body_at
    for raw in bytes(segment.body).split(b"\n")[:-1]:
        if not is_blank(raw):
            yield Line(f"{name}/{number}@{at}", segment.header.arrived_us, raw)
        at += len(raw) + 1
