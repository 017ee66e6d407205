"""Models, evidence and results in files, and models of other libraries as objects."""
