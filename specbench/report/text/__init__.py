"""How figures and rows are spelled, and tokens as text."""
