"""Build a file that a method reads. The methods own the kinds of files and the command's
arguments.
"""

from importlib import import_module

main = import_module("methods.build").main
