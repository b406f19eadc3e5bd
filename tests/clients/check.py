"""What the client scripts share: the address to talk to, and checks that say what they found."""

import sys


def base():
    """The server's address, the scripts' only argument."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} http://HOST:PORT")
    return sys.argv[1].rstrip("/")


def equal(found, expected, what):
    if found != expected:
        sys.exit(f"{sys.argv[0]}: {what}: found {found!r}, expected {expected!r}")


def true(fact, what):
    if not fact:
        sys.exit(f"{sys.argv[0]}: {what}")


def raises(kind, call, what):
    """The exception of `kind` that `call` raises."""
    try:
        call()
    except kind as error:
        return error
    except Exception as error:  # whatever else a client library raises
        sys.exit(f"{sys.argv[0]}: {what}: raised {error!r}, expected {kind.__name__}")
    sys.exit(f"{sys.argv[0]}: {what}: raised nothing, expected {kind.__name__}")
