"""What estimators and structures agree on: structures, their sites, and masks."""
