"""Execution: lowers plans to stages, runs them on their loops, delivers batches to the consumer."""
