"""Spec-Bench's formulas and files."""
