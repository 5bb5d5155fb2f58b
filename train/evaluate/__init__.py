"""How good a representation is: uncompressed, on features of the backbone."""
