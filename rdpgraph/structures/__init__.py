"""The built-in structures; importing this registers them."""
