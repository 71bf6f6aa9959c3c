"""What to do: frozen nodes that describe a pipeline and know nothing of how it runs."""
