"""An application on a cluster: for each number on its input it lets the executors count so many rows."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(master: str) -> None:
    settings = {
        "spark.master": master,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        print(spark.range(0, int(line), 1, 4).count(), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
