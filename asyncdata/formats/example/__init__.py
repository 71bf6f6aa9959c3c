"""``tf.train.Example`` and ``tf.train.SequenceExample``, without TensorFlow and without protobuf."""
