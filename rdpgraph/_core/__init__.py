"""What every room uses: caches, types, shapes, numbers, and what crosses to other processes."""
