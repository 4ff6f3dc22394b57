"""``python -m specbench``."""

import sys

from specbench.commands import main

if __name__ == "__main__":
    sys.exit(main())
