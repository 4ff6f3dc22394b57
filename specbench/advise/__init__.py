"""Advice from runs and latency profiles: the best method, its best parameters, and what limits a
forward.
"""
