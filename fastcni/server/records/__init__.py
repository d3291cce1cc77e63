"""Keep records of ended requests.

    ended            the record of one request, for the log and the metrics
    stories          the steps of a request
    secrets          hides secrets in output for people
    history          the control request of `fastcni trace`: the last requests
    retried_deletes  logs the DELs that a runtime repeats after an error
"""
