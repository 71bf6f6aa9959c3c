"""The stages, one family per file; each obeys the laws in `asyncdata.runtime.stage`."""
