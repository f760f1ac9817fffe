"""``python -m stof_cupy`` is the command ``stof-cupy``."""

from __future__ import annotations

import sys

from stof_cupy.cli import main

if __name__ == "__main__":
    sys.exit(main())
