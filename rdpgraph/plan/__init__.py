"""Plans: elimination and contraction orders, schedules and their costs; integers, no tensors."""
