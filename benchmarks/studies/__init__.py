"""Scripts behind single result pages."""
