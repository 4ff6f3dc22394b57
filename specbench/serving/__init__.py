"""Many concurrent requests: when they arrive, their order, and a simulated server on a latency profile."""
