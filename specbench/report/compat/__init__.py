"""Other tools' formulas and files: Spec-Bench's, and the library's own loops beside ours."""
