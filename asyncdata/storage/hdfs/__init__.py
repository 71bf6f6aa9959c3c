"""``hdfs://`` by hdfs-native, which speaks Hadoop's own protocols without a Java machine."""
