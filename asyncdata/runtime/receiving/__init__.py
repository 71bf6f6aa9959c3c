"""Processes that receive the bodies of reads beside the I/O loop."""
