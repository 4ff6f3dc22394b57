"""``python -m specbench.report RUN...``."""

from specbench.report.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
