"""Memory that processes share: the arena, slabs, the ledger of bytes, and the blocks that refer to them."""
