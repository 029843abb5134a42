"""What people would use instead, each set up as its own docs advise."""
