"""Memory that processes share: arena, slabs, the ledger of bytes, and the blocks that refer into them."""
