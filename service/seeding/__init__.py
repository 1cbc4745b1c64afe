"""Made-up history (`phoenix demo --seed-data`): for looking at the pages and for tests, marked as such everywhere."""
