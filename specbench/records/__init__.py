"""The files that a run writes, and their readers: records, the manifest, the directory,
Spec-Bench's answer files.
"""
