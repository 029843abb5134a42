"""Real servers on loopback: Kafka, Spark's masters and workers, Redis, S3, and a disk whose power can be cut."""
