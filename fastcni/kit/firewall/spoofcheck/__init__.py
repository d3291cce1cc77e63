"""Check what a pod's port sends: mac.py checks the source MAC, ip.py the source addresses."""
