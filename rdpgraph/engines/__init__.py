"""What solves a model: kernels, exact contraction, and what they share."""
