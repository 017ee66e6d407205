"""Randomized pruning: auxiliary-variable block Gibbs sampling over masks."""
