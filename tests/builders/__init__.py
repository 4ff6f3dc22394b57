"""Builders that the tests share: configurations and runs, models, engines with scripted drafters,
and records.
"""
