"""The tools of a measurement: the plan of its blocks, the clock, the machine, and the lossless
check.
"""
