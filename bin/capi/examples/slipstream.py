"""slipstream.h for Python, by ctypes: a handle closes itself, failures are exceptions, events own their text.

The library is found by the argument of `load`, by SLIPSTREAM_LIBRARY, or by the system's own search.
"""

import ctypes
import json
import os
from ctypes import POINTER, c_char, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

ABI = 1
FOREVER = 2**64 - 1

# slipstream_status
OK, FAILED, USAGE, REFUSED, HANDLE, ARGUMENT, TOO_SMALL, FULL, NO_REQUEST, CLOSED, DEAD, INTERNAL = range(12)
# slipstream_endpoint
CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE, APPLY_TEMPLATE, TOKENS, MESSAGES, RESPONSES = range(1, 9)
# slipstream_kind
CHUNK, ANSWER, END, ERROR, CANCELLED, PAGES = range(1, 7)


class _Request(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("endpoint", c_uint32),
        ("json", c_char_p),
        ("json_len", c_size_t),
        ("tokens", POINTER(c_uint32)),
        ("tokens_len", c_size_t),
    ]


class _Event(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("request", c_uint64),
        ("sequence", c_uint64),
        ("kind", c_uint32),
        ("status", c_uint32),
        ("choice", c_uint32),
        ("pages_held", c_uint32),
        ("pages_free", c_uint32),
        ("json", c_void_p),
        ("json_len", c_size_t),
        ("tokens", POINTER(c_uint32)),
        ("tokens_len", c_size_t),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("event_size", c_size_t),
        ("events", POINTER(_Event)),
        ("events_max", c_size_t),
        ("bytes", POINTER(c_char)),
        ("bytes_max", c_size_t),
        ("tokens", POINTER(c_uint32)),
        ("tokens_max", c_size_t),
        ("events_len", c_size_t),
        ("bytes_len", c_size_t),
        ("tokens_len", c_size_t),
    ]


class Drafts(ctypes.Structure):
    """slipstream_drafts."""

    _fields_ = [(name, c_uint64) for name in ("drafted", "accepted", "rejected", "unreached", "discarded")]


class Stats(ctypes.Structure):
    """slipstream_stats."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("requests", c_uint64),
        ("events", c_uint64),
        ("running", c_uint64),
        ("waiting", c_uint64),
        ("prompt_tokens", c_uint64),
        ("completion_tokens", c_uint64),
        ("mtp", Drafts),
        ("suffix", Drafts),
        ("threads", c_uint64),
    ]


class Error(Exception):
    """A call that failed: its status, and the library's words."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


@dataclass
class Event:
    """slipstream_event."""

    request: int
    sequence: int
    kind: int
    status: int
    choice: int
    pages_held: int
    pages_free: int
    json: str
    tokens: list

    @property
    def last(self):
        """Nothing of the request but pages follows."""
        return self.kind not in (CHUNK, PAGES)


_library = None


def load(path=None):
    """The library, loaded once."""
    global _library
    if _library is None:
        found = ctypes.CDLL(path or os.environ.get("SLIPSTREAM_LIBRARY", "libslipstream.so"))
        text = [c_char_p, c_size_t, POINTER(c_char), c_size_t, POINTER(c_size_t)]
        for name, arguments in {
            "abi": [],
            "preflight": text,
            "open": [c_char_p, c_size_t, POINTER(c_uint64)],
            "about": [c_uint64, *text[2:]],
            "submit": [c_uint64, POINTER(_Request), POINTER(c_uint64)],
            "poll": [c_uint64, c_uint64, c_uint64, POINTER(_Batch)],
            "cancel": [c_uint64, c_uint64],
            "get_stats": [c_uint64, POINTER(Stats)],
            "close": [c_uint64],
            "last_error": text[2:],
        }.items():
            function = getattr(found, "slipstream_" + name)
            function.argtypes = arguments
            function.restype = c_uint32 if name == "abi" else c_int32
        if found.slipstream_abi() != ABI:
            raise ImportError(f"the library has interface {found.slipstream_abi()}, this module {ABI}")
        _library = found
    return _library


def _text(fill):
    size = 1024
    while True:
        buffer, length = ctypes.create_string_buffer(size), c_size_t()
        status = fill(buffer, size, ctypes.byref(length))
        if status != TOO_SMALL:
            return status, buffer.raw[: length.value].decode() if status == OK else ""
        size = length.value


def _check(status):
    if status != OK:
        raise Error(status, _text(load().slipstream_last_error)[1])


def _json(value):
    return (json.dumps(value) if not isinstance(value, str) else value).encode()


def preflight(config=""):
    """Whether a configuration (a dict, or JSON) would be opened, and what it would take."""
    config = _json(config)
    status, report = _text(lambda *buffer: load().slipstream_preflight(config, len(config), *buffer))
    _check(status)
    return json.loads(report)


class Engine:
    """An open model; `with Engine() as engine` closes it. Several threads may use one."""

    def __init__(self, config=""):
        self._handle = c_uint64()
        config = _json(config)
        _check(load().slipstream_open(config, len(config), ctypes.byref(self._handle)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        # Without a handle where opening failed.
        if getattr(self, "_handle", None) is not None and self._handle.value and _library is not None:
            _library.slipstream_close(self._handle)

    @property
    def handle(self):
        """The number that the C functions take."""
        return self._handle.value

    def close(self):
        """Ends it now. Does nothing the second time."""
        handle, self._handle = self._handle, c_uint64()
        if handle.value:
            _check(load().slipstream_close(handle))

    def about(self):
        """Model, slots, pages, workers."""
        status, text = _text(lambda *buffer: load().slipstream_about(self._handle, *buffer))
        _check(status)
        return json.loads(text)

    def submit(self, endpoint, body):
        """Queues the body of an endpoint: a dict, or JSON. Returns the request's number."""
        return self._submit(endpoint, body, ())

    def submit_tokens(self, prompt, options=""):
        """Queues a prompt of token ids; `options` are the other fields of a completion."""
        return self._submit(TOKENS, options, prompt)

    def _submit(self, endpoint, body, prompt):
        body, number = _json(body), c_uint64()
        # ctypes would take other numbers for what their lowest 32 bits say.
        if wrong := [token for token in prompt if not 0 <= token < 2**32]:
            raise ValueError(f"{wrong[0]} is no token id")
        tokens = (c_uint32 * len(prompt))(*prompt)
        request = _Request(ctypes.sizeof(_Request), endpoint, body, len(body), tokens, len(prompt))
        _check(load().slipstream_submit(self._handle, ctypes.byref(request), ctypes.byref(number)))
        return number.value

    def poll(self, request=0, timeout=None):
        """Takes what there is, of one request or of all; waits for the first event up to `timeout` seconds."""
        # A time that is over waits for nothing.
        wait = FOREVER if timeout is None else min(max(round(1000 * timeout), 0), FOREVER)
        events, bytes_max, tokens_max = (_Event * 64)(), 1 << 16, 1 << 12
        while True:
            text, tokens = (c_char * bytes_max)(), (c_uint32 * tokens_max)()
            batch = _Batch(ctypes.sizeof(_Batch), ctypes.sizeof(_Event), events, len(events), text, bytes_max)
            batch.tokens, batch.tokens_max = tokens, tokens_max
            status = load().slipstream_poll(self._handle, request, wait, ctypes.byref(batch))
            if status != TOO_SMALL:
                break
            bytes_max, tokens_max = max(bytes_max, batch.bytes_len), max(tokens_max, batch.tokens_len)
        _check(status)
        return [
            Event(
                e.request,
                e.sequence,
                e.kind,
                e.status,
                e.choice,
                e.pages_held,
                e.pages_free,
                ctypes.string_at(e.json, e.json_len).decode() if e.json_len else "",
                e.tokens[: e.tokens_len] if e.tokens_len else [],
            )
            for e in events[: batch.events_len]
        ]

    def events(self, request):
        """All events of a request, the last included."""
        while True:
            for event in self.poll(request):
                yield event
                if event.last:
                    return

    def cancel(self, request):
        """Ends a request; one event says so."""
        _check(load().slipstream_cancel(self._handle, request))

    def stats(self):
        """Counters since the handle was opened."""
        stats = Stats(ctypes.sizeof(Stats))
        _check(load().slipstream_get_stats(self._handle, ctypes.byref(stats)))
        return stats
