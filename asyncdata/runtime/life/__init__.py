"""Where the life of a Runtime and of a pipeline begins and ends: loops, threads, closing."""
