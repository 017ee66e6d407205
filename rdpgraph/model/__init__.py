"""What the user declares: variables, potentials, factors, graphs, and evidence."""
