"""What measures the harness and the machine, for scripts only: no run needs it."""
