"""From bytes to records: framing, decompression, tf.train.Example, images. No files, no sockets, no event loop.

Import the modules themselves (``from asyncdata.formats import tfrecord``). Importing this package loads none of them,
so that a worker process loads only the formats that it uses.
"""
