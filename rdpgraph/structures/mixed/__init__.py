"""Bitexts of rules that mix words and up to three parts."""
