"""Runs: settings become a checked job, which decodes on a model, on recorded answers or on
servers.
"""
