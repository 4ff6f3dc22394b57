"""Many concurrent requests: when they arrive, their order, and the servers that answer them."""
