"""What is set while a pipeline runs: the knobs of its stages, where steps run, how many workers and receivers."""
