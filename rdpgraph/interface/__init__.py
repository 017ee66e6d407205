"""Interfaces between estimators and structures: structures, their sites, and masks."""
