"""Make, find, move, configure and delete the pod's links; change the pod's routes and routing rules."""
