"""The log as a stream: Spark's own file source over the incoming segments.

Only the names travel through Spark; the tasks read the bytes themselves. The stream is bounded in
bytes: no event that can be billed is shorter than EVENT_BYTES_MIN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentab.log.directory import DirectoryLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_BYTES_MIN = 48  # {"time":1,"customer":"a","type":"A","amount":1} and its newline


def segment_stream(spark: SparkSession, log: DirectoryLog, *, batch_events_max: int) -> DataFrame:
    """A streaming frame of the paths of incoming segments, oldest first."""
    return (
        spark.readStream.format("binaryFile")
        .schema("path string, modificationTime timestamp, length long, content binary")
        .option("pathGlobFilter", "*.seg")
        .option("maxBytesPerTrigger", str(batch_events_max * EVENT_BYTES_MIN))
        # Age never hides a segment; what the journal holds is moved away instead.
        .option("maxFileAge", "36500d")
        .load(str(log.incoming))
        .select("path")
    )
