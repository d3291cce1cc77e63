"""What a pod's port may send: a backend for its MAC, and one for its addresses."""
