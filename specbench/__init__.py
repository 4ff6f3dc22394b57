"""specbench: which speculative-decoding method makes this model faster, by how much, and why.

What a method's author needs is here; the rest is behind the ``specbench`` and ``specbench report`` commands.
"""

__version__ = "0.1.0"
