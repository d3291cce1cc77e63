"""HTTP rules: read documents of kind CiliumNetworkPolicy, and run HAProxy, which allows or denies the requests."""
