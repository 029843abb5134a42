"""From bytes to events: `reference` judges one line exactly, `decode` many at once, and both agree."""
