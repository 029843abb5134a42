"""Answers of a replica whose file has one bit flipped: python scene_flipped_replica.py HOME SEED COUNT

Each flip is looked at by a process of its own, for a damaged page may crash whoever reads it. Half of the flips are
anywhere in the file, half in the first bytes of a page of LMDB's B-trees. Prints what came of them as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from opentab.api.answers import Fresh
from opentab.core.errors import ReplicaError
from opentab.replica.reader import Reader
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.server.answers import Answers
from opentab.server.archive import Archive
from opentab.server.position_view import Moment

PAGE_BYTES = 4096
TREE_FLAGS = 0x03  # of a page that is a branch or a leaf
FRESH = Fresh(position=0, invoices_position=0, watermark=None, as_of=None, staleness_ms=None)
TREE_BYTES = 64  # its header and its first pointers
OUTCOMES = {0: "right", 1: "refused", 2: "wrong"}


def answers_of(home: Home, customers: list[str]) -> Any:
    with Reader(home.replica_path).read() as snapshot:
        answers = Answers(snapshot, Moment(snapshot, home.calendar), Archive(home), FRESH)
        periods = answers.moment.periods
        return [
            answers.overview("EUR"),
            [answers.at_a_glance(customer, hot_only=True) for customer in customers],
            [answers.total(period, customer) for period in periods for customer in customers],
            [answers.invoices(customer) for customer in customers],
            [list(answers.customers(period, limit=1_000)) for period in periods],
            [answers.top_customers(period, limit=1_000) for period in periods],
            answers.types_of_days(date(2025, 1, 1), date(2027, 1, 1), by_day=True),
            answers.batches(1_000),
        ]


def outcome(home: Home, customers: list[str], wanted: Any) -> str:
    """What one process sees."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = 0 if answers_of(home, customers) == wanted else 2
        except ReplicaError:
            code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return "crashed" if os.WIFSIGNALED(status) else OUTCOMES.get(os.WEXITSTATUS(status), "traceback")


def main() -> None:
    home, seed, count = config.load(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    dice, data = random.Random(seed), home.replica_path / "data.mdb"
    whole = data.read_bytes()
    customers = json.loads((home.path / "customers.json").read_text())
    wanted = answers_of(home, customers)
    pages = range(2, len(whole) // PAGE_BYTES)
    trees = [at for at in pages if whole[at * PAGE_BYTES + 10] & TREE_FLAGS and not whole[at * PAGE_BYTES + 11]]
    found: Counter[str] = Counter()
    wrong = []
    for number in range(count):
        if number % 2:
            bit = 8 * PAGE_BYTES * dice.choice(trees) + dice.randrange(8 * TREE_BYTES)
        else:
            bit = dice.randrange(16 * PAGE_BYTES, 8 * len(whole))
        with data.open("r+b") as file:
            file.seek(bit // 8)
            file.write(bytes([whole[bit // 8] ^ 1 << bit % 8]))
        came = outcome(home, customers, wanted)
        found[came] += 1
        if came in ("wrong", "traceback"):
            wrong.append((came, bit, bit // 8 // PAGE_BYTES, bit // 8 % PAGE_BYTES))
        with data.open("r+b") as file:
            file.seek(bit // 8)
            file.write(whole[bit // 8 : bit // 8 + 1])
        (home.replica_path / "damage.json").unlink(missing_ok=True)
    sys.stdout.write(
        json.dumps({"seed": seed, "found": found, "wrong": wrong, "trees": len(trees), "pages": len(pages)})
    )


if __name__ == "__main__":
    main()
