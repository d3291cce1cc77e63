"""Run the requests to the server, from the socket to the answer, and keep sockets and cached state for the next
request.

    protocol         a request and its answer, as messages on a unix socket
    acceptor         accepts connections, and reads their requests
    request_queue    the requests that wait, and the decision which one runs next
    slots            the running requests, and which of them hang
    workers          the threads that run one request after another
    mode             the warm mode of a request
    hosts            the network namespaces of callers, each with its open sockets and cached state
    facts            cached kernel state, valid until the kernel notifies a change
    configurations   network configurations, decoded once for all pods of a network
    grouped_deletes  deletes the links of several requests by one request to the kernel
"""
