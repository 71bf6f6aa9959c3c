"""What is decided about requests: how many, in which order, how long, and when again. Apart from every backend."""
