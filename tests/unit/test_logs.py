"""The lines for operators: their two forms, their bounds, and what must not be in them."""

from __future__ import annotations

import json
import logging
import re
import stat
import threading
from datetime import datetime
from pathlib import Path

import pytest

from ledgers import bill, new_home
from opentab.billing.batch_log import BatchLog
from opentab.core.errors import LogUnreachable
from opentab.runtime import logs
from opentab.runtime.logs import LogFile, TroubleLog, fields
from product import event

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"
AT = "2026-02-01T12:00:03.120Z"


def line(
    message: str = "files compacted", *, at: str = AT, level: int = logging.INFO, **told: object
) -> logging.LogRecord:
    record = logging.LogRecord("opentab.billing", level, "", 0, message, None, None)
    record.created, record.process = datetime.fromisoformat(at).timestamp(), 4242
    record.__dict__.update(fields(**told))
    return record


def written(path: Path) -> list[dict[str, object]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_the_example_in_the_documents_is_what_is_written(tmp_path: Path) -> None:
    section = OPERATING.read_text(encoding="utf-8").partition("\n## Logs\n")[2].partition("\n## ")[0]
    blocks = [
        re.findall(r"^    (.+)$", block, re.MULTILINE) for block in re.findall(r"(?:^    .+\n)+", section, re.MULTILINE)
    ]
    texts, objects = (block for block in blocks if "Z" in block[0])
    assert len(texts) == len(objects) > 3
    for text, written_json in zip(texts, objects, strict=True):
        found = json.loads(written_json)
        record = line(
            found.pop("message"), at=found.pop("time"), level=logging.getLevelNamesMapping()[found.pop("level")]
        )
        record.name, record.process = found.pop("logger"), found.pop("process")
        record.__dict__.update(fields(**found))
        assert LogFile(tmp_path, is_json=False).format(record) == text
        assert LogFile(tmp_path, is_json=True).format(record) == written_json


def test_every_record_is_one_line() -> None:
    text = LogFile(Path(), is_json=False).format(
        line("two\nlines", reason='a "b"\nc', nothing=None, closed=["2026-01"])
    )
    assert text == f'{AT} INFO opentab.billing[4242] "two\\nlines" reason="a \\"b\\"\\nc" closed=["2026-01"]'
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        failed = line("failed")
        failed.exc_info = (ValueError, error, error.__traceback__)
    for is_json in (False, True):
        text = LogFile(Path(), is_json=is_json).format(failed)
        assert "Traceback" in text and "\n" not in text


@pytest.mark.parametrize("is_json", [False, True])
def test_no_secret_is_written(is_json: bool) -> None:
    file = LogFile(Path(), is_json=is_json, without_secrets=lambda text: text.replace('s3"cret', "…"))
    told = line("refused", url="https://ann:pass@word@example.com/x", reason='the key s3"cret is wrong')
    text = file.format(told)
    assert "pass" not in text and "word@" not in text and "cret" not in text
    assert "@example.com/x" in text


def test_a_message_that_comes_too_often_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LINES_MAX", 3)
    path = tmp_path / "logs" / "server.log"
    file = LogFile(path, is_json=True)
    for number in range(10):
        file.handle(line("token refused", number=number))
    file.handle(line("worker starts"))
    assert [one["message"] for one in written(path)] == ["token refused"] * 3 + ["worker starts"]
    file.handle(line("token refused", at="2026-02-01T12:01:00Z"))
    left_out, again = written(path)[4:]
    assert (left_out["message"], left_out["of"], left_out["lines"]) == ("lines left out", "token refused", 7)
    assert again["message"] == "token refused"
    for _ in range(4):
        file.handle(line("token refused", at="2026-02-01T12:01:01Z"))
    file.close()
    assert written(path)[-1]["lines"] == 2


def test_a_file_that_is_full_is_moved_aside_and_some_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 2000)
    path = tmp_path / "pipeline.log"
    # As many handlers as there may be processes that share the file.
    writers = [LogFile(path, is_json=True) for _ in range(2)]

    def write(writer: int) -> None:
        for number in range(100):
            writers[writer].handle(line("batches committed", writer=writer, batch=number))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path.touch()  # the last line may have filled the file
    kept = [path, *(path.with_suffix(f".log.{number}") for number in (1, 2, 3))]
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    for older in kept[1:]:
        assert 2000 < older.stat().st_size < 2400
        assert stat.S_IMODE(older.stat().st_mode) == 0o600
    newest_last = [one for file in reversed(kept) for one in written(file)]
    for writer in range(2):
        numbers = [one["batch"] for one in newest_last if one["writer"] == writer]
        assert not numbers or numbers == list(range(numbers[0], 100)), "no line is lost or out of order"


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file where the directory should be")
    LogFile(tmp_path / "logs" / "pipeline.log", is_json=True).handle(line())
    assert capsys.readouterr().err == ""


def test_trouble_is_told_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "opentab.test")
    troubles = TroubleLog(logging.getLogger("opentab.test"))
    error = LogUnreachable("the brokers do not answer")
    for trouble in (None, error, error, None, None):
        troubles.see("log", trouble)
    begins, over = caplog.records
    assert (begins.message, begins.__dict__["fields"]) == ("trouble begins", {"part": "log", "reason": str(error)})
    assert (over.message, over.__dict__["fields"]["part"]) == ("trouble is over", "log")


def test_committed_batches_are_summed_up_without_gaps_and_closings_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "opentab")
    home = new_home(tmp_path / "home")
    batch_log = BatchLog()
    for day in ("2026-01-30", "2026-01-31", "2026-02-05"):
        batch_log.committed(bill(home, event(time=f"{day}T12:00:00Z"), "no event"))
    batch_log.tell()
    batch_log.tell()
    told = [record.__dict__["fields"] for record in caplog.records if record.message == "batches committed"]
    assert [(one["first_batch"], one["batch"], one["events"]) for one in told] == [(1, 1, 1), (2, 3, 2)]
    assert told[1]["rejections"] == {"not_json": 2}
    (issued,) = (record for record in caplog.records if record.message == "invoices issued")
    assert issued.name == "opentab.closing"
    assert {name: issued.__dict__["fields"][name] for name in ("position", "closed", "revised", "invoices")} == {
        "position": 3,
        "closed": ("2026-01",),
        "revised": (),
        "invoices": 1,
    }
