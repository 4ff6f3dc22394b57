"""The eager engine: any causal language model of transformers, tree attention by masks."""
