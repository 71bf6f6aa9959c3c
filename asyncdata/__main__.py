"""``python -m asyncdata``: the commands that look into files, check them, and measure how fast they are read."""

from __future__ import annotations

import sys

from asyncdata.command_line.entry import main

if __name__ == "__main__":
    sys.exit(main())
