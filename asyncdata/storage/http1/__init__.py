"""The range client: HTTP/1.1 bodies received directly into their final place."""
