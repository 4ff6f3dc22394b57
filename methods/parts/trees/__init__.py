"""Shapes of draft trees, fixed, grown and drawn."""
