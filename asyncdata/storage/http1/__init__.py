"""The range client: HTTP/1.1 bodies received straight into their final place."""
