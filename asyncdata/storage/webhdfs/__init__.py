"""``webhdfs://`` and ``swebhdfs://``: HDFS over HTTP."""
