"""The routes of the library, one a file: each bids for questions, and answers them."""
