"""Where a pipeline is: what its stages write down about their position."""
