"""Plans: elimination and contraction orders, slices and their costs; integers, no tensors."""
