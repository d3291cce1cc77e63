"""Allocate addresses: ranges, the files of held addresses, and their index."""
