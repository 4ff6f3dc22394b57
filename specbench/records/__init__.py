"""What a run writes and how it is read back: records, the manifest, the directory, Spec-Bench's answer files."""
