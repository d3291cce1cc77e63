"""Drop a pod's frames with a false source: mac.py checks the source MAC, ip.py the source addresses."""
