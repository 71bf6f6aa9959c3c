"""The asynchronous rim of the ledger: grants, fills, lends and returns slabs."""
