"""opentab beside its peers: real ones over a real topic, small; and what becomes of the figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from opentab import cli
from opentab.core.errors import InputError, MachineError, OpentabError
from opentab_tools.bench import peers
from opentab_tools.bench.audited import audit_replica
from opentab_tools.bench.billed_home import bill_month
from opentab_tools.bench.catch_up import measure_catch_up
from opentab_tools.bench.compare import compare, machines_differ, read_figures, verdict
from opentab_tools.bench.end_to_end import EndToEnd
from opentab_tools.bench.figures import Figure, plain, write_json
from opentab_tools.bench.peers import (  # fmt: skip
    ALL,
    COMMIT,
    COMMIT_ONCE,
    END,
    FLINK_HEAP,
    FLINK_ROCKSDB,
    READING,
    REDIS,
    ROCKSDB,
    Turn,
    bench_peers,
    peers_figures,
)
from opentab_tools.bench.plots import draw_all
from opentab_tools.bench.redis_peer import redis_peer
from opentab_tools.bench.whole import (
    Chapter,
    all_chapters,
    bench_whole,
    document_to_keep,
    failed_chapters,
    quick_chapters,
)
from opentab_tools.measuring.measured_run import Committed, MeasuredRun
from opentab_tools.servers.redis_server import redis_server
from opentab_tools.servers.resp import RedisLine
from product import opentab

EVENTS = 4_000


def test_opentab_and_spark_s_own_ways_over_one_topic(tmp_path: Path) -> None:
    """Every bill is audited on the way: a wrong one would end it."""
    said: list[str] = []
    contenders = (READING, END, REDIS, ROCKSDB)
    # Sizes that are the same, as large ones are over few events, are one topic.
    figures = bench_peers(
        events=EVENTS, sizes=(20, 20), repeats=1, contenders=contenders,
        json_path=tmp_path / "figures.json", work_dir=tmp_path / "work", say=said.append,
    )  # fmt: skip
    rates = {figure.name: figure for figure in figures}
    for name in contenders:
        assert rates[f"{name}, 20 customers"].value > 0
    assert rates[f"{END} to {ROCKSDB}, 20 customers"].peer == ROCKSDB
    checkpoints = rates[f"{ROCKSDB}, 20 customers, checkpoints"]
    assert (checkpoints.value >= 1, checkpoints.peer) == (True, ROCKSDB)
    document = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert set(document["figures"][0]) == {"name", "value", "unit", "goal", "met", "peer", "spread"}
    settings = document["machine"]["settings"][ROCKSDB]
    assert settings["spark.master"] == "local[2]"
    assert "RocksDB" in settings["spark.sql.streaming.stateStore.providerClass"]
    redis = document["machine"]["settings"][REDIS]
    assert (redis["redis appendfsync"], ", Redis " in redis["version"]) == ("everysec", True)
    assert any(line.startswith(f"{ROCKSDB} was set up so: ") and "spark.master=local[2]" in line for line in said)


def turn(customers: int, **rates: float) -> Turn:
    names = {"commit": COMMIT, "once": COMMIT_ONCE, "end": END, "reading": READING, "flink": FLINK_HEAP}
    names |= {"rocksdb": ROCKSDB, "redis": REDIS}
    return Turn(customers, rates={names[name]: rate for name, rate in rates.items()})


def test_ratios_are_taken_within_a_turn() -> None:
    few = [turn(100, commit=100, end=80, reading=200, flink=50, once=80), turn(100, commit=50, end=50, reading=100)]
    many = [turn(10**6, commit=95, end=60, flink=20, rocksdb=20, redis=20), turn(10**6, commit=45, end=20)]
    figures = {figure.name: figure for figure in peers_figures([*few, *many])}
    assert figures[f"{COMMIT}, 1,000,000 to 100 customers"].spread == (0.9, 0.95)
    assert figures[f"{COMMIT}, 1,000,000 to 100 customers"].met
    assert figures[f"{END}, 1,000,000 to 100 customers"].met is False
    assert figures[f"{COMMIT} to {READING}, 100 customers"].value == 0.5
    assert figures["dedupe on to off, to commit, 100 customers"].met
    flink = figures[f"{END} to {FLINK_HEAP}, 1,000,000 customers"]
    assert (flink.value, flink.goal, flink.met, flink.peer) == (3.0, "≥ 3.5", False, FLINK_HEAP)
    assert figures[f"{END} to {FLINK_HEAP}, 100 customers"].goal == "≥ 1.0"


def test_a_peer_that_cannot_be_had_is_skipped_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise MachineError("Flink could not be installed")

    monkeypatch.setattr(peers, "install_flink", fail)
    monkeypatch.setattr(peers, "find_redis", lambda: None)
    said: list[str] = []
    contenders, skipped = peers._present(ALL, said.append)
    assert FLINK_HEAP not in contenders
    assert FLINK_ROCKSDB not in contenders
    assert REDIS in contenders
    assert len(skipped) == 2
    assert any("Flink could not be installed" in line for line in said)


def test_without_redis_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    said: list[str] = []
    contenders, skipped = peers._present((READING, REDIS), said.append)
    assert contenders == [READING]
    assert skipped[0].startswith(f"{REDIS}: redis-server is missing (on Debian run: ")
    assert said[-1] == f"skipped: {skipped[0]}"


def test_a_redis_of_our_own_answers(tmp_path: Path) -> None:
    with redis_server(tmp_path, {"save": "", "appendonly": "no"}) as server, RedisLine(server.port) as line:
        line.add([(b"emma:2026-01", b"CALL", 5), (b"emma:2026-01", b"CALL", -7)])
        assert line.ask(b"HGET", b"emma:2026-01", b"CALL") == b"-2"
        assert line.ask(b"HGET", b"emma:2026-01", b"DATA") == b"", "there is nothing"
        assert line.ask(b"SET", b"text", b"x" * 3_000_000) == b"OK"
        assert len(line.ask(b"GET", b"text")) == 3_000_000
        with pytest.raises(OpentabError, match="Redis refused HGET: WRONGTYPE"):
            line.ask(b"HGET", b"text", b"CALL")
        with pytest.raises(OpentabError, match="Redis refused an addition"):
            line.add([(b"text", b"CALL", 1)])
    assert not RedisLine.answers(server.port), "it ends with us"


def test_redis_is_filled_and_read(tmp_path: Path) -> None:
    with redis_peer(tmp_path, keys=1_000, value="12.34") as redis:
        load = redis.get(seconds=0.1)
        assert load.per_second > 0
        assert redis.misses() == 0
    with (
        pytest.raises(OpentabError, match="1 reads of redis found nothing"),
        redis_peer(tmp_path, keys=1, value="") as one,
        RedisLine(one.port) as line,
    ):
        line.ask(b"GET", b"nobody")


def test_end_to_end_ends_when_all_can_be_read() -> None:
    batches = tuple(Committed(number, number * 1_000_000, 100) for number in (1, 2, 3))
    run = MeasuredRun(0, batches, {}, 0.0)
    folded = EndToEnd(run, folded_us=6_000_000, replica_bytes=1)
    assert (run.events_per_second, folded.events_per_second) == (100, 50)
    assert (run.warm_events_per_second, folded.warm_events_per_second) == (100, 25)
    one = Turn(20, rates={END: 25, COMMIT: 100}, runs={END: run, COMMIT: run}, folded={END: folded})
    figures = {figure.name: figure.value for figure in peers_figures([one])}
    assert figures[f"{END}, 20 customers, from the start"] == 50
    assert figures[f"{COMMIT}, 20 customers, from the start"] == 100


def test_a_replica_that_differs_from_the_planned_bills_is_found(tmp_path: Path) -> None:
    home = bill_month(tmp_path / "home", customers=3)
    measure_catch_up(home)
    audit_replica(home, expected_path=home.expected_path)
    bills = home.expected_path / "bills.csv"
    first, *others = bills.read_text(encoding="utf-8").splitlines()
    bills.write_text("\n".join([first, *others[1:]]) + "\n", encoding="utf-8")
    with pytest.raises(OpentabError, match="the replica differs from the planned bills for 1 customers"):
        audit_replica(home, expected_path=home.expected_path)


def chapter(name: str, *figures: Figure) -> Chapter:
    def measure(*, json_path: Path, work_dir: Path, say: Callable[[str], None]) -> list[Figure]:
        write_json(json_path, {"extra": name}, figures)
        return list(figures)

    return Chapter(name, measure)


def test_the_whole_goes_on_behind_a_chapter_that_fails(tmp_path: Path) -> None:
    def fail(**_: object) -> list[Figure]:
        raise OpentabError("no more room")

    chapters = [chapter("one", plain("a", [1.0], "s")), Chapter("two", fail), chapter("three", plain("b", [2.0], "s"))]
    figures = bench_whole(chapters, json_path=tmp_path / "all.json", work_dir=tmp_path, say=lambda _: None)
    assert [figure.name for figure in figures] == ["one: a", "three: b"]
    document = read_figures(tmp_path / "all.json")
    assert document.figures == figures
    assert document.machine["chapters"]["two"]["failed"] == "no more room"
    assert failed_chapters(chapters, figures) == ["two"]
    one = document.machine["chapters"]["one"]
    assert one["extra"] == "one"
    assert len(one["load"]) == 2
    assert min(one["yardstick_ms"]) > 0
    assert 0 <= one["stolen_share"] <= one["stolen_share"] + one["busy_share"] <= 1


def test_the_bar_steps_with_every_line_and_is_full_at_the_end(tmp_path: Path) -> None:
    def talk(count: int, *, json_path: Path, say: Callable[[str], None], **_: object) -> list[Figure]:
        for number in range(count):
            say(f"run {number}")
        write_json(json_path, {}, [])
        return []

    chapters = [Chapter("as told", partial(talk, 3), lines=3), Chapter("silent", partial(talk, 0), lines=4)]
    chapters.append(Chapter("more than told", partial(talk, 9), lines=2))
    steps: list[int] = []

    def advance(step: int, *, total: int, label: str | None = None) -> None:
        assert total == 9
        steps.append(step)

    bench_whole(chapters, json_path=None, work_dir=tmp_path, say=lambda _: None, advance=advance)
    assert steps == [0, 1, 1, 0, 1, 0, 4, 0, 1, *[0] * 8, 1]


def test_a_bug_in_a_chapter_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    def stumble(**_: object) -> list[Figure]:
        raise IndexError("list index out of range")

    chapters = [Chapter("one", stumble), chapter("two", plain("b", [2.0], "s"))]
    figures = bench_whole(chapters, json_path=tmp_path / "all.json", work_dir=tmp_path, say=lambda _: None)
    assert [figure.name for figure in figures] == ["two: b"]
    assert read_figures(tmp_path / "all.json").machine["chapters"]["one"]["failed"].startswith("IndexError")


def test_a_bench_of_which_a_chapter_fails_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> list[Figure]:
        raise OpentabError("the audit did not agree")

    before = os.environ.get("TMPDIR")
    monkeypatch.setattr("opentab_tools.bench.whole.quick_chapters", lambda: [Chapter("peers", fail)])
    with pytest.raises(OpentabError, match="not all was measured: peers"):
        cli.commands(["bench", "--quick"], standalone_mode=False)
    assert "peers failed: the audit did not agree" in capsys.readouterr().err
    assert os.environ.get("TMPDIR") == before, "the bench's own directory is gone by now"


def test_a_chapter_is_measured_anew_in_a_document_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    both = [chapter("one", plain("a", [1.0], "s")), chapter("one more", plain("b", [2.0], "s"))]
    bench_whole(both, json_path=path, work_dir=tmp_path, say=lambda _: None)
    anew = [chapter("one", plain("c", [3.0], "s"))]
    bench_whole(anew, json_path=path, work_dir=tmp_path, say=lambda _: None, kept=document_to_keep(path))
    document = read_figures(path)
    assert [figure.name for figure in document.figures] == ["one more: b", "one: c"]
    assert set(document.machine["chapters"]) == {"one", "one more"}
    assert document_to_keep(tmp_path / "none.json") is None


def test_a_document_of_another_machine_is_not_written_to(tmp_path: Path) -> None:
    write_json(tmp_path / "other.json", {"cpu_model": "abacus"}, [])
    with pytest.raises(InputError, match="another machine"):
        document_to_keep(tmp_path / "other.json")


def test_the_chapters() -> None:
    assert [chapter.name for chapter in quick_chapters()] == ["peers", "freshness"]
    names = [chapter.name for chapter in all_chapters(events=10, repeats=1)]
    assert len(set(names)) == len(names)
    assert {"peers", "freshness", "reads", "dedupe", "ingest", "closing", "replica", "recovery"} <= set(names)


RATE = Figure("rate", 100.0, "events/s", spread=(90.0, 110.0))


@pytest.mark.parametrize(
    ("before", "after", "meaning"),
    [
        (RATE, replace(RATE, value=120, spread=(112, 130)), "better"),
        (RATE, replace(RATE, value=80, spread=(70, 85)), "worse"),
        (RATE, replace(RATE, value=105, spread=(100, 120)), "within the spread"),
        (RATE, RATE, ""),
        (replace(RATE, unit="ms"), replace(RATE, unit="ms", value=80, spread=(70, 85)), "better"),
        (replace(RATE, spread=None), replace(RATE, spread=None, value=80), ""),
        (replace(RATE, met=True), replace(RATE, met=False), "misses its goal now"),
        (replace(RATE, met=False), replace(RATE, met=True), "meets its goal now"),
    ],
)
def test_what_a_change_means(before: Figure, after: Figure, meaning: str) -> None:
    assert verdict(before, after) == meaning


def test_two_benches_side_by_side(tmp_path: Path) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    write_json(one, {"cpu_count": 2}, [RATE, plain("gone", [1.0], "s")])
    write_json(other, {"cpu_count": 2}, [replace(RATE, value=150, spread=(140, 160)), plain("new", [2.0], "s")])
    rows = compare(read_figures(one).figures, read_figures(other).figures)
    assert rows[0] == ("rate", "events/s", "100", "150", "1.500", "better")
    assert [row[-1] for row in rows[1:]] == ["only before", "only after"]
    assert machines_differ(read_figures(one), read_figures(other)) is None
    done = opentab("bench", "compare", str(one), str(other))
    assert done.returncode == 0
    assert "better" in done.stdout
    other.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="does not hold the figures"):
        read_figures(other)


def test_a_chapter_that_there_is_not() -> None:
    done = opentab("bench", "--chapter", "nonsense", check=False)
    assert done.returncode == 2
    assert "is none of: peers" in done.stderr


def test_pictures(tmp_path: Path) -> None:
    figures = [
        plain(f"peers: {name}, {size:,} customers", [rate, rate * 1.2], "events/s")
        for name, rate in zip(ALL, range(100_000, 1_100_000, 100_000), strict=True)
        for size in (100, 10_000, 1_000_000)
    ]
    figures += [plain(f"dedupe: with to without, 0% repeats, {n:,} ids remembered", [0.8], "ratio") for n in (0, 10)]
    for size in (1_000, 100_000):
        figures.append(plain(f"closing: close, {size:,} customers", [1.0], "s"))
        figures.append(plain(f"closing: close and write the files, {size:,} customers", [2.0], "s"))
    paths = draw_all(figures, tmp_path)
    assert [path.name for path in paths] == ["over-customers.svg", "beside-peers.svg", "dedupe.svg", "closing.svg"]
    assert all(path.read_text(encoding="utf-8").lstrip().startswith("<?xml") for path in paths)
    assert draw_all(figures[:0], tmp_path / "none") == []
