"""Reader threads and processes: encoded images, read ahead in the planned order."""
