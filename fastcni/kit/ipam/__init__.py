"""Allocate addresses to pods: read the ranges, keep the files of held addresses, and index them."""
