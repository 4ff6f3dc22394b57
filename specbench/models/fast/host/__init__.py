"""The forward of the fast engine as compiled code on a CPU; needs numba, which is loaded when it is
used.
"""
