"""``hdfs://`` through hdfs-native, which implements Hadoop's own protocols without Java."""
