"""From manifests and records to every figure that a report prints; nothing is drawn or formatted
here.
"""
