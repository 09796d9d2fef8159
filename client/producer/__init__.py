"""Send records: gather them into batches and deliver each batch once."""
