"""How far gradients of compressed views are from uncompressed ones, and a schedule of that."""
