"""Everything that solves a model: contraction, messages, search, mini-buckets, structures."""
