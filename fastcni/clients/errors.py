"""Define the errors of a remote service that does not answer."""


class Away(Exception):
    """The service cannot be reached, or did not answer in time. The text names the service and the reason. The service
    may have carried out the request; the request may be repeated."""


class Busy(Away):
    """The service is overloaded: it answered with an error that says so, or did not answer in time. If the caller soon
    repeats the request, the service may answer."""


class Rejected(Away):
    """The service answered that it does not accept this request, for example because a webhook of Kubernetes denied it.
    The service may accept other requests."""


class Invalid(Rejected):
    """The service answered that the request itself is wrong. The same request would get the same answer again."""
