"""A recursion as a tape of log-linear steps, and every question about it asked once."""
