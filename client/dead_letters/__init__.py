"""Read, redrive and purge the records that workers gave up."""
