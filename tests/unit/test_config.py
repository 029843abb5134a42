"""A wrong setting is named with its fix before anything starts."""

from __future__ import annotations

import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from opentab.core.errors import ConfigError
from opentab.runtime import config


def parsed(text: str) -> config.Home:
    return config.parse(Path("home"), tomllib.loads(text))


def test_a_directory_without_a_file_has_all_defaults(tmp_path: Path) -> None:
    home = config.load(tmp_path)
    assert home["billing.currency"] == "EUR"
    assert home["billing.out_of_orderness"] == timedelta(hours=12)
    assert home.log_path == tmp_path / "log"
    assert home.spark["spark.master"] == "local[*,4]"


def test_the_template_says_what_the_defaults_are(tmp_path: Path) -> None:
    uncommented = "\n".join(line.removeprefix("# ") for line in config.template().splitlines()[1:])
    home = config.parse(tmp_path, tomllib.loads(uncommented))
    assert home.values == config.load(tmp_path).values
    for setting in config.SETTINGS:
        assert f"# {setting.key} = {setting.default}" in config.template()


def test_spark_settings_are_passed_on() -> None:
    home = parsed(
        '[spark]\nmaster = "spark://m:7077"\ndriver.memory = "2g"\n"sql.shuffle.partitions" = 4\nui.enabled = true'
    )
    assert home.spark == {
        "spark.master": "spark://m:7077",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "true",
    }


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[billing]\nzone = 'Nowhere'", "billing.zone 'Nowhere' is not a time zone"),
        ("[billing]\ncurrency = 'euro'", "billing.currency = 'euro' is wrong"),
        ("[billing]\ntypes = []", "billing.types"),
        ("[billing]\nout_of_orderness = 12", "billing.out_of_orderness = 12 is wrong: it must be a duration"),
        ("[billing]\nallowed_lateness = '3 days'", "billing.allowed_lateness"),
        ("[billing]\ncurency = 'EUR'", "did you mean currency?"),
        ("[biling]\n", "did you mean billing?"),
        ("[pipeline]\nbatch_events_max = 0", "pipeline.batch_events_max = 0 is wrong"),
        ("[server]\nport = 99999", "server.port"),
        ("billing = 1", "billing must be a section"),
    ],
)
def test_what_is_wrong_is_named(text: str, fact: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(text)
    assert fact in str(error.value)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "opentab.toml").write_text("[billing\n")
    with pytest.raises(ConfigError, match="is not TOML"):
        config.load(tmp_path)
    with pytest.raises(ConfigError, match="not a directory"):
        config.load(tmp_path / "opentab.toml")


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43_200), ("1d12h", 129_600), ("250ms", 0.25), ("0s", 0)])
def test_durations(text: str, seconds: float) -> None:
    assert config.parse_duration(text).total_seconds() == seconds


def test_spark_on_this_machine_asks_who_calls_it_and_encrypts(tmp_path: Path) -> None:
    from opentab.billing.session import settings_of

    (tmp_path / "opentab.toml").write_text('[spark]\nmaster = "spark://elsewhere:7077"\n')
    local, cluster = (
        settings_of(config.load(tmp_path / "none"), reads_rows=False),
        settings_of(config.load(tmp_path), reads_rows=False),
    )
    asked = ("spark.authenticate", "spark.network.crypto.enabled")
    assert [local.get(name) for name in asked] == ["true", "true"]
    assert [cluster.get(name) for name in asked] == [None, None]  # all of the cluster must be told: docs/cluster.md
