"""``python -m asyncdata``: the commands that look into files, check them, and measure how fast they are read."""

from __future__ import annotations

import sys

try:
    from asyncdata.command_line.entry import main
except KeyboardInterrupt:  # imports take half a second, in which somebody may notice a wrong word
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
