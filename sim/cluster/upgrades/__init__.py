"""Clusters of two versions: the product, and a next version with an added command, field, row field and wire version."""
