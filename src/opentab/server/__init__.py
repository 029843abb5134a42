"""Live answers over HTTP, from a replica: whoever reads needs neither the pipeline nor Spark."""
