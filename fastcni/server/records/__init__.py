"""What is known of requests that have ended.

    ended            the record of one request, for the log and the metrics
    stories          what happened in a request, step by step
    secrets          secrets in what is shown to people
    history          the control request of `fastcni trace`: the last requests
    retried_deletes  the DELs that a runtime repeats because they failed
"""
