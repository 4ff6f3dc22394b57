"""Many concurrent requests: when they arrive, who is served when, and a simulated server on a latency profile."""
