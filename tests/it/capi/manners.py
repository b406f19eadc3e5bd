"""The Python module as Python treats it: collected, left by exceptions, given nonsense.

    manners.py CONFIG

Ends well if every handle is closed when its owner has gone. The last engine is left open, and computes.
"""

import gc
import sys
import threading

import slipstream as s


def is_open(handle):
    stats = s.Stats(s.ctypes.sizeof(s.Stats))
    return s.load().slipstream_get_stats(handle, s.ctypes.byref(stats)) == s.OK


def failure(call, kind=s.Error):
    try:
        call()
    except kind as error:
        assert str(error), "a failure without words"
        return getattr(error, "status", kind)
    return s.OK


def main(config):
    engine = s.Engine(config)
    handle = engine.handle
    del engine
    gc.collect()
    assert not is_open(handle), "nobody has it any more"

    engine = s.Engine(config)
    engine.itself, handle = engine, engine.handle
    del engine
    gc.collect()
    assert not is_open(handle), "a cycle is collected too"

    try:
        with s.Engine(config) as engine:
            handle = engine.handle
            raise KeyError("the host's own")
    except KeyError:
        assert not is_open(handle)
    engine.close()
    assert failure(engine.stats) == s.HANDLE and failure(lambda: engine.poll(0, 0)) == s.HANDLE

    assert failure(lambda: s.Engine("{")) == s.USAGE
    assert failure(lambda: s.Engine({"model": "a\0b"})) != s.OK
    assert failure(lambda: s.Engine("\ud800"), UnicodeEncodeError) is UnicodeEncodeError
    with s.Engine(config) as engine:
        for wrong in (-1, 2**32, 2**32 + 5):
            assert failure(lambda: engine.submit_tokens([1, wrong]), ValueError) is ValueError, wrong
        assert engine.poll(0, -1) == [] and engine.poll(0, 0.001) == []
        assert failure(lambda: engine.poll(99)) == s.NO_REQUEST and failure(lambda: engine.cancel(99)) == s.NO_REQUEST
        # An event that is larger than the first buffer.
        text = "x y " * 20000
        (answer,) = engine.events(engine.submit(s.TOKENIZE, {"content": text, "with_pieces": True}))
        assert answer.kind == s.ANSWER and len(answer.json) > 1 << 16
        assert engine.events(engine.submit(s.CHAT, {})).__next__().kind == s.ERROR

        # A poll that waits ends with the handle, and holds up no other thread meanwhile.
        statuses = []
        waits = threading.Thread(target=lambda: statuses.append(failure(lambda: engine.poll())))
        waits.start()
        engine.stats()
    waits.join()
    assert statuses[0] in (s.CLOSED, s.HANDLE), statuses


if __name__ == "__main__":
    main(sys.argv[1])
    LEFT = s.Engine(sys.argv[1])
    LEFT.submit_tokens([1, 2, 3], {"max_tokens": 200, "ignore_eos": True})
    print("done")
