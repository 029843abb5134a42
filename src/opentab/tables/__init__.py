"""Delta tables that survive a power cut and notice a flipped bit: Parquet files, the commit log, checksums."""
