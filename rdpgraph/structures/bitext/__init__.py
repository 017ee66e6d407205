"""Bitexts: distributions over the trees that two sentences share."""
