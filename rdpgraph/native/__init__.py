"""The compiled code, its building and its loading: the ground floor of every room that calls it."""
