"""The pipeline: what is planned, what runs when, what is recorded as done."""
