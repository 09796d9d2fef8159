"""Keep archives: Delta tables of records, through Hadoop's file systems. Read them alone, or with the live topic."""
