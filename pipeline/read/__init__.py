"""Read encoded images ahead in the planned order, with threads or processes."""
