"""What the training loop touches: iterators, and the edge where elements leave the pipeline."""
