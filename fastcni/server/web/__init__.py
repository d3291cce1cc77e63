"""Serve the pages of `fastcni serve --http` and --metrics over HTTP, read-only and for this machine only.

    address      reads the addresses, and opens their listening sockets
    listener     the thread that answers HTTP requests
    site         the pages of one address, from the server's start to its end
    status_page  the status page, and the JSON that it reads
    page.*       the HTML, style and script of the status page
"""
