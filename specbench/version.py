"""The version of the package: what a manifest names and ``specbench --version`` prints."""

__version__ = "0.1.0"
