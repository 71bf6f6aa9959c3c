"""The asynchronous rim of the ledger: slabs are granted, filled, lent and given back."""
