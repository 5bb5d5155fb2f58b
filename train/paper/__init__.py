"""Tables of the paper, computed again."""
