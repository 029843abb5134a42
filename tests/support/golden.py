"""Write the golden home of this version: a small home that every later version must still read.

It is made once for each schema version, and for each table that comes to it, and then left alone: name the
edition, `make golden`, then commit it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from opentab.core.records import SCHEMA_VERSION
from opentab.runtime import config
from opentab.simulator.generator import Plan, generate
from product import opentab

GOLDEN = Path(__file__).parents[1] / "golden"
EDITION = f"v{SCHEMA_VERSION}-invoices"


def main() -> None:
    target = GOLDEN / EDITION
    if target.exists():
        raise SystemExit(f"{target} is there already: a golden home is never written again")
    target.mkdir(parents=True)
    (target / "opentab.toml").write_text(
        '[billing]\nzone = "Europe/Berlin"\nout_of_orderness = "1h"\nallowed_lateness = "12h"\n'
        "[pipeline]\nbatch_events_max = 20\ncompact_files = 6\nsnapshot_batches = 4\n"
    )
    home = config.load(target)
    plan = Plan(
        first_period="2025-11", months=3, events_per_customer=20, bad_share=0.1, late_share=0.1, beyond_share=0.2,
        cloudevents_share=0.2, sources=1, until_final=True,
    )  # fmt: skip
    generate(plan, home)
    opentab("run", "--once", home=home)
    totals = opentab("totals", "--format", "json", home=home).stdout
    rejections = opentab("rejections", "--format", "json", home=home).stdout
    invoices = opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout
    (target / "totals.jsonl").write_text(totals)
    (target / "invoices.jsonl").write_text(invoices)
    (target / "rejections.jsonl").write_text(rejections)
    for scrap in ("checkpoint", "logs", "pipeline.lock", "log/aside", "log/default.lock"):
        path = target / scrap
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for commit in target.glob("ledger/*/_delta_log/*.json"):  # a new table's commit tells where it was made
        commit.write_text(commit.read_text().replace(str(target), "/golden"))
    assert any(json.loads(line)["adjustments"] for line in totals.splitlines())
    assert any(json.loads(line)["revision"] > 1 for line in invoices.splitlines())


if __name__ == "__main__":
    main()
