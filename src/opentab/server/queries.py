"""Where questions are asked: one snapshot an answer, and with it how fresh it is. Knows no framework."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
from msgspec.structs import asdict

from opentab.api.answers import Diagnosis, Fresh, Pipeline, Replica, Sink, Usage, Used
from opentab.core.errors import OpentabError, ReplicaError
from opentab.core.periods import Period, day_of_number, first_day, last_day
from opentab.ledger.diagnosis import BATCHES, diagnose
from opentab.ledger.journal import Journal
from opentab.ledger.usage import usage
from opentab.replica.batches import last_batches
from opentab.replica.flags import Trouble, read_following, read_trouble
from opentab.replica.presence import Presence
from opentab.replica.reader import Reader
from opentab.replica.store import Snapshot
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat
from opentab.server.answers import Answers
from opentab.server.archive import Archive
from opentab.server.freshness import Pulse, freshness_of
from opentab.server.ledger_turns import LedgerTurns
from opentab.server.metrics import LedgerCollector
from opentab.server.position_view import Moment
from opentab.server.problem import Problem
from opentab.sinks.delivery_status import read_backlog
from opentab.tables.error_text import reading

BEAT_MS_MAX = 10_000  # a pipeline that has been silent for longer gives no sign of life
WAIT_SECONDS_MAX = 5.0
WAIT_STEP_SECONDS = 0.01
RETRY = {"retry-after": "1"}
JSON = "application/json"
NOTHING = "nothing was billed there"
MILLISECOND_NS = 1_000_000

Ask = Callable[[Answers], Any]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a caller asks of an answer besides its content."""

    staleness_max_ms: float | None = None
    seen: str | None = None  # the tags of answers that it has
    holder: str = ""  # who asks: a token, or an address


ANY = Conditions()


@dataclass(frozen=True, slots=True)
class Days:
    """A range of days, and how to group it."""

    first: date
    last: date
    group: tuple[str, ...] = ()

    def within(self, period: Period) -> Days:
        """Those of them that lie in a period."""
        first, last = day_of_number(first_day(period)), day_of_number(last_day(period))
        return Days(max(self.first, first), min(self.last, last), self.group)

    def fields(self) -> dict[str, str]:
        """Those of an answer."""
        return {"from_": str(self.first), "to": str(self.last)}


@dataclass(slots=True)
class Reply:
    """An answer, ready to be sent."""

    status: int
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Form:
    """A way to write an answer down."""

    media: str
    write: Callable[[Any], bytes]  # a struct of the API
    headers: dict[str, str]


AS_JSON = Form(JSON, msgspec.json.encode, {})


class Desk:
    """Answers questions from the home's replica."""

    def __init__(self, home: Home, reader: Reader) -> None:
        self.home = home
        self._reader = reader
        self._archive = Archive(home)
        self._ledger_turns = LedgerTurns()
        self._ledger = home.ledger
        self._pulse = Pulse(self._ledger)
        self._is_local = self._ledger.is_local
        self._moment: Moment | None = None
        self._fresh: tuple[Moment, Heartbeat | None, int, Fresh] | None = None
        self._plain_headers: tuple[Fresh, dict[str, str]] | None = None

    def answer(
        self,
        ask: Ask,
        conditions: Conditions = ANY,
        form: Form = AS_JSON,
        *,
        nothing: str = NOTHING,
    ) -> Reply:
        """Ask one snapshot; 304 if the caller has seen it, a problem if there is nothing or it is too old."""
        with ExitStack() as held, self._reader.read() as snapshot:
            turn = self._ledger_turns.turn(conditions.holder)
            answers = self._answers(snapshot, lambda: held.enter_context(turn))
            fresh = answers.fresh
            limit = conditions.staleness_max_ms
            if limit is not None and (fresh.staleness_ms is None or fresh.staleness_ms > limit):
                raise Problem(503, "the answer is older than that", headers=RETRY, more=asdict(fresh))
            headers = self._headers(fresh, form)
            if conditions.seen is not None and _has_seen(conditions.seen, headers["etag"]):
                return Reply(304, b"", headers)
            found = self._asked(ask, answers)
        if found is None:
            raise Problem(404, nothing, more=asdict(fresh))
        # An invoice has a position of its own; that of the answer is in the headers then.
        return Reply(200, form.write(found), headers)

    def glance(self, customer: str) -> Reply | None:
        """What `answer` says to the question that everyone asks, in less time.

        None where it would say anything but a total from the replica.
        """
        with self._reader.read() as snapshot:
            answers = self._answers(snapshot)
            found = answers.at_a_glance(customer, hot_only=True)
        if found is None:
            return None
        return Reply(200, msgspec.json.encode(found), self._headers(answers.fresh, AS_JSON))

    def look(self, ask: Callable[[Answers], dict[str, Any]]) -> tuple[Fresh, dict[str, Any]]:
        """How fresh an answer is, and its fields apart from that."""
        with self._reader.read() as snapshot:
            answers = self._answers(snapshot)
            return answers.fresh, self._asked(ask, answers)

    def pulse(self) -> Fresh:
        """How fresh answers are at this moment."""
        with self._reader.read() as snapshot:
            return self._answers(snapshot).fresh

    def pipeline(self) -> dict[str, Any]:
        """What pipeline, replicas and the invoice sink last said of themselves, and what keeps our own replica from
        going on: fields of an overview."""
        beat, trouble, now_us = self._pulse.beat(), self.trouble(), _now_us()
        present = self._pulse.replicas(now_us)
        said = beat and Pipeline(
            age_ms=max(0, (now_us - beat.at_us) // 1000),
            streaming=beat.streaming,
            position=beat.position,
            caught_up=beat.caught_up,
            unread_segments=beat.unread_segments,
            invoices_position=beat.invoices_position,
            held_back=beat.held_back,
            trouble=beat.trouble,
            spark_ui=beat.spark_ui,
        )
        return {
            "pipeline": said,
            "replicas": [Replica(one.name, one.position, max(0, (now_us - one.at_us) // 1000)) for one in present],
            "sink": self._sink(now_us),
            "trouble": trouble.text if trouble else None,
            "diagnosis": self._diagnosis(beat, present),
        }

    def usage(self, answers: Answers, days: Days, customer: str) -> Usage:
        """What a customer used in a range of days, from the ledger, at the replica's own position."""
        answers.ask_ledger()
        rows = usage(
            Journal.open(self.home.ledger, self.home.identity),
            upto=answers.moment.place.position,
            first=days.first,
            last=days.last,
            group=days.group,
            customer=customer,
        )
        return answers.whole(Usage, customer=customer, **days.fields(), items=[Used(**row) for row in rows])

    async def wait_for(self, position: int) -> None:
        """Wait a little until the replica is there; a problem if it is not."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            with self._reader.read() as snapshot:
                meta = snapshot.meta()
            at = meta.position if meta else 0
            if at >= position:
                return
            if time.monotonic() > deadline:
                raise Problem(503, f"position {position} is not there yet, but {at}", headers=RETRY)
            await asyncio.sleep(WAIT_STEP_SECONDS)

    def trouble(self) -> Trouble | None:
        """What keeps the follower from going on, if anything."""
        return read_trouble(self.home.replica_path)

    def ledger_metrics(self) -> LedgerCollector:
        """What the ledger and the replica say to operators."""
        moment = None
        with suppress(ReplicaError), self._reader.read() as snapshot:
            moment = self._answers(snapshot).moment
        backlog = read_backlog(self.home.sinks_path) if self.home["invoices.http_url"] else None
        return LedgerCollector(moment, self._pulse.beat(), _now_us(), self.trouble(), backlog)

    def ready(self) -> Fresh:
        """How fresh the replica is; a problem unless it can be read, and its follower lives and has caught up once.

        A replica goes on answering while the pipeline is down, so age counts only where a limit is set.
        """
        with self._reader.read() as snapshot:
            fresh = self._answers(snapshot).fresh
        why = self._why_not_ready(fresh)
        if why is not None:
            raise Problem(503, why, headers=RETRY, more=asdict(fresh))
        return fresh

    def _why_not_ready(self, fresh: Fresh) -> str | None:
        following, trouble = read_following(self.home.replica_path), self.trouble()
        if following is None or not following.is_alive or not following.caught_up:
            state = "has not caught up yet" if following is not None and following.is_alive else "has ended"
            return f"the replica does not go on: {trouble.text if trouble else f'its follower {state}'}"
        limit = self.home["server.ready_staleness_max"]
        if limit is None:
            return None
        if fresh.staleness_ms is None:
            return "no pipeline has ever run here"
        return self._why_stale(fresh) if fresh.staleness_ms > limit.total_seconds() * 1000 else None

    def _diagnosis(self, beat: Heartbeat | None, replicas: Sequence[Presence]) -> Diagnosis | None:
        """Why batches are slow or late, as far as our own replica knows them."""
        with suppress(OpentabError), self._reader.read() as snapshot:
            moment = self._answers(snapshot).moment
            batches = list(last_batches(snapshot, moment.place.position, BATCHES + 1))
            found = diagnose(batches, moment.record, beat, replicas)
            return msgspec.convert(msgspec.to_builtins(found), type=Diagnosis) if found else None
        return None

    def _sink(self, now_us: int) -> Sink | None:
        """What the deliverer last said, while invoices are delivered over HTTP."""
        if not self.home["invoices.http_url"]:
            return None
        said = read_backlog(self.home.sinks_path)

        def age_ms(at_us: int | None) -> int | None:
            return None if at_us is None else max(0, (now_us - at_us) // 1000)

        return Sink(
            age_ms=age_ms(said.at_us if said else None),
            position=said.position if said else 0,
            waiting=said.waiting if said else 0,
            stuck=said.stuck if said else 0,
            delivered=said.delivered if said else 0,
            oldest_ms=age_ms(said.oldest_us if said else None),
            delivered_ms=age_ms(said.delivered_us if said else None),
            gone=said.gone if said else False,
            error=said.error if said else None,
        )

    def _why_stale(self, fresh: Fresh) -> str:
        beat = self._pulse.beat()
        age = f"the answers are {(fresh.staleness_ms or 0) / 1000:.0f} s old"
        if beat is None or (_now_us() - beat.at_us) / 1000 > BEAT_MS_MAX:
            return f"{age}: the pipeline gives no sign of life"
        if beat.position > fresh.position:
            return f"{age}: the replica is {beat.position - fresh.position} batches behind"
        why = beat.trouble or f"the pipeline is {beat.unread_segments} {beat.unread_unit} behind"
        return f"{age}: {why}"

    def _answers(self, snapshot: Snapshot, take_turn: Callable[[], object] = lambda: None) -> Answers:
        moment = self._moment
        if moment is None or moment.meta is None or moment.meta is not snapshot.meta():
            moment = Moment(snapshot, self.home.calendar)
            if moment.meta is None:
                raise ReplicaError("the replica is being made", retry_helps=True)
            self._moment = moment
        return Answers(snapshot, moment, self._archive, self._freshness(moment), take_turn)

    def _asked(self, ask: Ask, answers: Answers) -> Any:
        if self._is_local:
            return ask(answers)
        with reading(self._ledger):
            return ask(answers)

    def _freshness(self, moment: Moment) -> Fresh:
        """How fresh answers are; found out once a millisecond, not once an answer."""
        beat, now_us = self._pulse.beat(), _now_us()
        known, now_ms = self._fresh, now_us // 1000
        if known is not None and known[0] is moment and known[1] is beat and known[2] == now_ms:
            return known[3]
        fresh = freshness_of(moment, beat, now_us)
        self._fresh = (moment, beat, now_ms, fresh)
        return fresh

    def _headers(self, fresh: Fresh, form: Form) -> dict[str, str]:
        """The same dict for as long as answers are as fresh."""
        if form is not AS_JSON:
            return _headers(fresh, form)
        known = self._plain_headers
        if known is None or known[0] is not fresh:
            known = self._plain_headers = (fresh, _headers(fresh, form))
        return known[1]


def _now_us() -> int:
    return time.time_ns() // 1000


def _has_seen(tags: str, etag: str) -> bool:
    known = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
    return etag in known or "*" in known


def _headers(fresh: Fresh, form: Form) -> dict[str, str]:
    kind = "" if form.media == JSON else f"-{form.media.partition('/')[2]}"
    return {
        "content-type": form.media,
        "etag": f'"{fresh.position}-{fresh.invoices_position}{kind}"',
        "cache-control": "no-cache",
        "opentab-position": str(fresh.position),
        "opentab-invoices-position": str(fresh.invoices_position),
        "opentab-watermark": fresh.watermark or "",
        "opentab-as-of": fresh.as_of or "",
        "opentab-staleness-ms": "" if fresh.staleness_ms is None else str(fresh.staleness_ms),
        **form.headers,
    }
