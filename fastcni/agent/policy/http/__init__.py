"""Rules by HTTP requests: documents of kind CiliumNetworkPolicy, and HAProxy, which allows or denies the requests."""
