"""Requests to the server, from the socket to the answer, and what the server keeps for the next one.

    protocol         a request and its answer, as messages on a unix socket
    acceptor         connections accepted, and their requests read
    request_queue    the requests that wait, and the decision which one runs next
    slots            the requests that run, and which of them hang
    workers          the threads that run one request after another
    mode             what the warm mode of a request does differently
    hosts            the network namespaces of callers, each with its open sockets and known facts
    facts            facts about the kernel, valid until the kernel announces a change
    configurations   network configurations, decoded once for all pods of a network
    grouped_deletes  links deleted together
"""
