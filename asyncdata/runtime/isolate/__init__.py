"""The whole loader in one child process: loops, storage, ledger, arena, workers; finished batches cross as offsets."""
