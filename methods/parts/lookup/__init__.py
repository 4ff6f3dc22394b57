"""Tables and indices of token sequences that several methods draft from."""
