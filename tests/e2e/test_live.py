"""Live answers while things go wrong: real servers, real pipelines, real kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec
import pytest
import trustme

from ledgers import bill, new_home
from opentab.core.errors import ConfigError
from opentab.ledger.journal import Journal
from opentab.log import DirectoryLog, Producer
from opentab.replica.flags import read_following, read_trouble, write_following
from opentab.replica.reader import Reader
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat, write_heartbeat
from opentab.server.problem import Problem
from opentab.server.queries import Desk
from opentab.server.serve import Tls, check_tls
from opentab.server.tokens import Role, issue, read_key
from processes import check_exact, on_its_own_disk, serving, streams, wait_for
from product import OPENTAB, event, opentab

SETTINGS = '[billing]\nout_of_orderness = "0s"\n'
ENDPOINTS = [
    "/v1/customers/ann",
    "/v1/customers/ann/periods/2026-01",
    "/v1/customers/ann/usage",
    "/v1/customers",
    "/v1/types",
    "/v1/types?from=2026-01-01",
    "/v1/periods",
    "/v1/periods/2026-01",
    "/metrics",
    "/healthz",
]


def answer(url: str, path: str = "/v1/periods") -> dict[str, object]:
    try:
        found: dict[str, object] = httpx.get(url + path, timeout=10).json()
    except httpx.HTTPError:
        return {}
    return found


def test_the_pipeline_is_killed_under_a_running_server(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    with serving(home, workers=1) as url:
        pipeline = start(home)
        wait_for(lambda: streams(home, pipeline), "Spark was up")
        post(url, "ann", "1.50")
        wait_for(lambda: total(url, "ann") == "1.500000", "the event was visible")
        assert streamed(url, "ann") == [("2026-01", {"CALL": "1.500000"}, 1)]
        wait_for(lambda: httpx.get(f"{url}/readyz").status_code == 200, "it was ready")
        wait_for(lambda: is_quiet(url), "a quiet log was not stale")
        pipeline.send_signal(signal.SIGKILL)
        pipeline.communicate()
        # Its Java process goes with it; the log takes events all the same.
        post(url, "ann", "2.25")
        wait_for(lambda: staleness_ms(url) > 10_000, "staleness grew")
        for path in ENDPOINTS:
            assert httpx.get(url + path, timeout=10).status_code == 200, path
        assert total(url, "ann") == "1.500000"
        assert httpx.get(f"{url}/readyz").status_code == 200, "a replica answers without a pipeline"
        pipeline = start(home)
        wait_for(lambda: total(url, "ann") == "3.750000", "it was back and had caught up")
        pipeline.terminate()
        pipeline.communicate()
        check_exact(home)
        wait_for(lambda: position(url) == journal_of(home).position, "the replica was there")
        assert total(url, "ann") == "3.750000"


def start(home: Home) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*OPENTAB, "run", "--home", str(home.path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def post(url: str, customer: str, amount: str) -> None:
    one = json.loads(event(customer, amount, "2026-01-15T12:00:00Z"))
    assert httpx.post(f"{url}/v1/events", json=one, timeout=10).json() == {
        "accepted": 1,
        "results": [{"accepted": True}],
    }


def total(url: str, customer: str) -> object:
    current = answer(url, f"/v1/customers/{customer}").get("current")
    return current["total"] if isinstance(current, dict) else None


def streamed(url: str, customer: str) -> list[tuple[str, dict[str, str], int]]:
    """What a stream says first: period, types and events."""
    with httpx.stream("GET", f"{url}/v1/stream", params={"customer": customer}, timeout=30) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                totals = json.loads(line.removeprefix("data: "))["totals"]
                return [(t["period"], t["types"], t["events"]) for t in totals]
    raise AssertionError("the stream ended")


def replicas(url: str) -> list[dict[str, object]]:
    found = answer(url, "/v1/overview")["replicas"]
    assert isinstance(found, list)
    return found


def staleness_ms(url: str) -> int:
    found = answer(url).get("staleness_ms")
    return found if isinstance(found, int) else 0


def position(url: str) -> object:
    return answer(url).get("position")


def is_quiet(url: str) -> bool:
    """Some seconds after the last batch an answer is still fresh."""
    found = answer(url)
    as_of = str(found["as_of"]).replace("Z", "+00:00")
    age = time.time() - datetime.fromisoformat(as_of).timestamp()
    return age > 4 and staleness_ms(url) < 3_000


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


def test_a_ledger_that_does_not_add_up_stops_the_replica_and_readyz_says_so(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("ann", "1.00"))
    with serving(home, workers=1) as url:
        wait_for(lambda: position(url) == 1, "it was there")
        journal = journal_of(home)
        last = journal.last()
        assert last is not None
        journal.commit(msgspec.structs.replace(last, batch=2, sum_micros="999", event_count=1), [])
        wait_for(lambda: read_trouble(home.replica_path) is not None, "the follower stopped")
        refused = httpx.get(f"{url}/readyz")
        assert refused.status_code == 503
        assert "the entries of batch 2 come to 0 rows" in refused.json()["detail"]
        assert (total(url, "ann"), position(url)) == ("1.000000", 1), "the last state that was right"
        assert "opentab_replica_in_trouble 1.0" in httpx.get(f"{url}/metrics").text


def test_a_replica_is_ready_once_its_follower_has_caught_up_and_while_it_lives(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("ann", "1.00"))
    with serving(home, workers=1) as url:
        wait_for(lambda: httpx.get(f"{url}/readyz").status_code == 200, "it was ready without a pipeline")
        following = read_following(home.replica_path)
        assert following is not None and following.caught_up
        os.kill(following.pid, signal.SIGKILL)
        wait_for(lambda: httpx.get(f"{url}/readyz").status_code == 503, "a follower was missed")
        wait_for(lambda: httpx.get(f"{url}/readyz").status_code == 200, "another one had caught up")
    write_following(home.replica_path, caught_up=False)  # this process lives
    ready = Desk(home, Reader(home.replica_path)).ready
    with pytest.raises(Problem, match="its follower has not caught up yet"):
        ready()
    write_following(home.replica_path, caught_up=True)
    assert ready().position == 1


def test_age_counts_for_readiness_where_a_limit_is_set(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", f'{SETTINGS}[server]\nready_staleness_max = "1ms"\n')
    bill(home, event("ann", "1.00"))
    with serving(home, workers=1) as url:
        wait_for(lambda: position(url) == 1, "it was there")
        refused = httpx.get(f"{url}/readyz")
        assert refused.status_code == 503
        assert "s old: the pipeline gives no sign of life" in refused.json()["detail"]
        assert total(url, "ann") == "1.000000"


def test_readyz_for_ingest_asks_the_log_too(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("ann", "1.00"))
    with serving(home, workers=1) as url:
        wait_for(lambda: httpx.get(f"{url}/readyz?for=ingest").status_code == 200, "it was ready")
        log_id = (home.log_path / "id").read_text()
        (home.log_path / "id").write_text("another log's")
        wait_for(lambda: httpx.get(f"{url}/readyz?for=ingest").status_code == 503, "the log was missed")
        refused = httpx.get(f"{url}/readyz?for=ingest").json()
        assert refused["detail"].startswith("events cannot be taken: ") and refused["position"] == 1
        assert httpx.get(f"{url}/readyz").status_code == 200, "reads go on"
        (home.log_path / "id").write_text(log_id)
        wait_for(lambda: httpx.get(f"{url}/readyz?for=ingest").status_code == 200, "it was ready again")
        assert httpx.get(f"{url}/readyz?for=nothing").status_code == 422


def test_a_full_disk_keeps_the_replica_where_it_is_and_space_lets_it_go_on(tmp_path: Path) -> None:
    printed = on_its_own_disk("scene_full_replica", tmp_path)
    assert "stopped: no space left on the disk" in printed
    assert printed.rstrip().endswith("events: 16000 whole: True"), printed


def test_two_replicas_of_one_ledger(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("ann", "1.00"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "opentab.toml").write_text(f'{SETTINGS}[log]\nuri = "{home.log_path}"\n[ledger]\nuri = "{home.ledger}"\n')
    with serving(home, workers=1) as one, serving(config.load(other), workers=1) as two:
        bill(home, event("ann", "2.00"))
        wait_for(lambda: position(one) == position(two) == 2, "both were there")
        assert total(one, "ann") == total(two, "ann") == "3.000000"
        wait_for(lambda: [r["position"] for r in replicas(one)] == [2, 2], "both had said so")
        assert sorted(str(r["name"]).rpartition(":")[2] for r in replicas(two)) == ["home", "other"]
        post(two, "ann", "4.00")
    assert [path.name for path in home.log_path.glob("incoming/*")], "events of both go into one log"


def test_five_hundred_streams_on_one_worker(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, *(event(f"c{number}", "1.00") for number in range(500)))
    with serving(home, workers=1) as url:
        wait_for(lambda: position(url) == 1, "it was there")
        first, second = asyncio.run(read_two(url, home))
    assert first == ["1.000000"] * 500
    assert second == ["3.000000"] * 500


def test_an_open_stream_does_not_keep_a_server_from_ending(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("ann", "1.00"))
    with httpx.Client(timeout=60) as client:
        with serving(home, workers=1) as url:
            wait_for(lambda: position(url) == 1, "it was there")
            stream = client.send(client.build_request("GET", f"{url}/v1/stream?customer=ann"), stream=True)
            lines = stream.iter_lines()
            assert next(lines).startswith("retry")
            ending = time.monotonic()
        assert time.monotonic() - ending < 15
        stream.close()


async def read_two(url: str, home: Home) -> tuple[list[str], list[str]]:
    """The first two messages of 500 streams that are open at the same time."""
    limits = httpx.Limits(max_connections=None)
    opened = asyncio.Semaphore(0)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:

        async def follow(number: int) -> list[str]:
            totals: list[str] = []
            params = {"customer": f"c{number}"}
            async with client.stream("GET", f"{url}/v1/stream", params=params) as stream:
                assert stream.status_code == 200
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        totals.append(json.loads(line.removeprefix("data: "))["totals"][0]["total"])
                        opened.release()
                    if len(totals) == 2:
                        return totals
            raise AssertionError("the stream ended")

        tasks = [asyncio.create_task(follow(number)) for number in range(500)]
        for _ in range(500):
            await opened.acquire()
        metrics = (await client.get(f"{url}/metrics")).text
        assert "opentab_open_streams 500.0" in metrics
        lines = [event(f"c{number}", "2.00") for number in range(500)]
        await asyncio.to_thread(bill, home, *lines)
        both = await asyncio.gather(*tasks)
    return [one for one, _ in both], [two for _, two in both]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, ssl.SSLContext]:
    """A certificate for this machine, and a client that trusts who signed it."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return Tls(directory / "cert.pem", directory / "key.pem"), context


def test_tls_and_so_many_streams_a_token(tmp_path: Path, tls: tuple[Tls, ssl.SSLContext]) -> None:
    files, trusting = tls
    home = new_home(tmp_path / "home", SETTINGS + '[server]\nkey_file = "key"\nstreams_max = 2\n')
    opentab("token", "key", home=home)
    bill(home, event("ann", "1.00"))
    key = read_key(home)
    assert key is not None
    tokens = [issue(key, Role.CUSTOMER, customer="ann", lifetime=timedelta(days=1)) for _ in range(2)]
    options = ("--tls-cert", str(files.cert), "--tls-key", str(files.key))
    with serving(home, *options, workers=1, verify=trusting) as url, httpx.Client(verify=trusting) as client:
        assert url.startswith("https://")
        headers = {"authorization": f"Bearer {tokens[0]}"}
        wait_for(lambda: client.get(f"{url}/v1/customers/ann", headers=headers).status_code == 200, "it was there")

        lines = []  # whoever lets go of them closes the stream

        def stream(token: str) -> httpx.Response:
            asked = client.build_request(
                "GET", f"{url}/v1/stream?customer=ann", headers={"authorization": f"Bearer {token}"}
            )
            found = client.send(asked, stream=True)
            if found.status_code == 200:
                lines.append(found.iter_lines())
                next(lines[-1])
            return found

        held = [stream(tokens[0]), stream(tokens[0])]
        refused = stream(tokens[0])
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert stream(tokens[1]).status_code == 200, "another token has its own"
        held.pop().close()
        wait_for(lambda: stream(tokens[0]).status_code == 200, "there was room again")
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http"), timeout=5)


def test_certificates_that_are_none(tmp_path: Path, tls: tuple[Tls, ssl.SSLContext]) -> None:
    files, _ = tls
    with pytest.raises(ConfigError, match="cannot be read"):
        check_tls(Tls(tmp_path / "none.pem", files.key))
    with pytest.raises(ConfigError, match="are no certificate and its key"):
        check_tls(Tls(files.key, files.cert))
    half = opentab("serve", "--tls-cert", files.cert, home=tmp_path / "home", check=False)
    assert (half.returncode, "a certificate needs its key" in half.stderr) == (2, True)


def test_events_are_refused_under_a_clock_that_contradicts_the_log(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("ann", "1.00"))
    Producer(DirectoryLog(home.log_path), clock=lambda: datetime(2099, 1, 1, tzinfo=UTC)).append(event().encode())
    with serving(home, workers=1) as url:
        held = Heartbeat(time.time_ns() // 1000, "run", 1, True, 0, False, None, 1, held_back=1, trouble="the clock")
        write_heartbeat(home.ledger, held)
        refused = httpx.post(f"{url}/v1/events", json=json.loads(event("ann", "1.00")))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "is 2099-01-01T00:00:00.000Z, ahead of this machine's clock" in refused.json()["detail"]
        assert "opentab_held_back_partitions 1.0" in httpx.get(f"{url}/metrics").text


def test_events_are_refused_while_the_pipeline_is_far_behind(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("ann", "1.00"))
    with serving(home, workers=1) as url:
        now_us = time.time_ns() // 1000
        write_heartbeat(home.ledger, Heartbeat(now_us, "run", 1, True, 1, False, None, unread_segments=1_000_000))
        refused = httpx.post(f"{url}/v1/events", json=json.loads(event("ann", "1.00")))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert "1,000,000 segments behind" in refused.json()["detail"]
