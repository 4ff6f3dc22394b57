"""Trained heads: their files, layers and trees."""
