"""The fast engine on several processes, each with a shard of every layer."""
