"""Attach a pod to several networks: choose the networks, find their definitions, and keep the files of Multus."""
