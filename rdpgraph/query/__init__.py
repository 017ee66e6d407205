"""The posterior and what one can ask of it."""
