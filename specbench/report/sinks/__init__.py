"""Places that a written report is sent to (report.to): MLflow, and files in the form of the Hugging Face hub."""
