"""Bytes across processes: worker processes, threads, and how functions and failures are transferred."""
