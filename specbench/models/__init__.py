"""The target and draft models: loading, the engines that run them, and tensor parallelism."""
