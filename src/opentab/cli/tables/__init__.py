"""What the larger commands print, as tables for people and as CSV and JSON for programs."""
