"""Rules by HTTP requests: documents of kind CiliumNetworkPolicy, and HAProxy, which judges the requests."""
