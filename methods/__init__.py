"""The methods: one module or package each, named after its paper; ``conf/method/`` has their
settings.
"""
