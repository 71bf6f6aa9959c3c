"""The commands of ``asyncdata``: one file each, and what they share."""
