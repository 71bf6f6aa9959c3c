"""Doing it: lowering plans to stages, running them on their loops, handing batches to the consumer."""
