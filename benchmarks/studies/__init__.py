"""Scripts behind single result pages. They run from a checkout; the wheel does not hold them."""
