"""The fast engine: our own forward of the Llama family on static buffers."""
