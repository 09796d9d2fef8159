"""Provide the parts that all rooms use: connection options, offsets, columns, and the care of Spark's Python workers."""
