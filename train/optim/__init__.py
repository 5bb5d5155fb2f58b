"""AdamW and its schedules."""
