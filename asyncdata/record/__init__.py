"""Writing: records and shards out of Python."""
