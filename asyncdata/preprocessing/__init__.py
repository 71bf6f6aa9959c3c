"""Map functions that are learned from a dataset, equal to Keras' preprocessing layers. No files but their own JSON.

Import the modules themselves. Importing this package loads none of them, so that a worker process loads only the
functions that it calls.
"""
