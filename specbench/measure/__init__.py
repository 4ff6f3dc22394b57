"""What a run measures with: the plan of its blocks, the clock, the machine, and the lossless check."""
