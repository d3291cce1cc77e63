"""Serve HTTP for `fastcni serve --http ADDRESS` and --metrics, read-only and for this machine only.

    address      the addresses, and their listening sockets
    listener     the thread that answers requests
    site         an address with its pages, from the server's start to its end
    status_page  the status page, and the JSON that it reads
    page.*       the HTML, style and script of the status page
"""
