#!/usr/bin/env python3
"""Times llama.cpp on one GGUF file and prints what `engine-bench speed --json` prints.

Run with the interpreter that has llama-cpp-python (README.md). One process is one measurement: prefill of `--prefill`
tokens from an empty cache, then `--decode` single-token steps right after it, then steps of r rows, each taken back
before the next (where layers have states, from a copy; that is not timed). Sampling is left out of every figure, in the
peer's favour.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time

import llama_cpp as lib

# Revision of the llama.cpp tree inside each llama-cpp-python release that was measured.
REVISIONS = {"0.3.36": "0c1e57098"}
KV_TYPES = {"f32": lib.GGML_TYPE_F32, "f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0}
UBATCH = 512


class Peer:
    """One sequence in one context. `length` counts the tokens in its cache."""

    def __init__(self, args, rows):
        lib.llama_log_set(SILENT, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = args.repack == "on"
        self.model = lib.llama_model_load_from_file(args.model.encode(), params)
        if not self.model:
            raise SystemExit(f"{args.model}: llama.cpp cannot load it")
        params = lib.llama_context_default_params()
        params.n_ctx = args.prefill + args.decode + max(rows) + 64
        params.n_batch = params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = args.threads
        params.flash_attn_type = 1 if args.flash == "on" else 0
        params.type_k = params.type_v = KV_TYPES[args.kv_type]
        params.no_perf = True
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp refuses these context parameters")
        self.memory = lib.llama_get_memory(self.context)
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(max(UBATCH, max(rows)), 0, 1)
        self.length = 0

    def step(self, count, all_logits):
        """Seconds that `count` rows of the sequence take, logits for every row or for the last one."""
        batch = self.batch
        batch.n_tokens = count
        for row in range(count):
            position = self.length + row
            batch.token[row] = (position * 7919 + 13) % self.vocab
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = all_logits or row == count - 1
        start = time.perf_counter()
        status = lib.llama_decode(self.context, batch)
        lib.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        if status != 0:
            raise SystemExit(f"llama_decode returned {status} for {count} rows at {self.length}")
        self.length += count
        return seconds

    def prefill(self, tokens):
        """Seconds that `tokens` rows take from here, in the chunks llama.cpp would choose."""
        seconds = 0.0
        while tokens:
            chunk = min(tokens, UBATCH)
            seconds += self.step(chunk, False)
            tokens -= chunk
        return seconds

    def forget(self):
        """Starts over with an empty sequence."""
        if not lib.llama_memory_seq_rm(self.memory, 0, -1, -1):
            raise SystemExit("llama.cpp cannot empty the cache of this model")
        self.length = 0

    def keep(self):
        """Remembers the sequence for `back`. Only states of recurrent layers must be copied: the rest can be cut."""
        self.kept = self.length
        self.states = None
        if lib.llama_model_is_hybrid(self.model) or lib.llama_model_is_recurrent(self.model):
            size = lib.llama_state_seq_get_size(self.context, 0)
            self.states = (ctypes.c_uint8 * size)()
            if lib.llama_state_seq_get_data(self.context, self.states, size, 0) != size:
                raise SystemExit("llama.cpp cannot save a sequence of this model")

    def back(self):
        """Makes the sequence what it was at `keep`."""
        if self.states is None:
            if not lib.llama_memory_seq_rm(self.memory, 0, self.kept, -1):
                raise SystemExit("llama.cpp cannot truncate the cache of this model")
        else:
            self.forget()
            if lib.llama_state_seq_set_data(self.context, self.states, len(self.states), 0) == 0:
                raise SystemExit("llama.cpp cannot restore a sequence of this model")
        self.length = self.kept


@lib.llama_log_callback
def SILENT(_level, _text, _data):
    """Drops llama.cpp's log; errors come back as statuses."""


def measure(args, rows):
    peer = Peer(args, rows)
    # Page faults, thread start and repacking belong to loading, not to a step.
    peer.prefill(args.prefill)
    for _ in range(4):
        peer.step(1, True)
    peer.forget()

    prefill = peer.prefill(args.prefill)
    decode = [peer.step(1, True) for _ in range(args.decode)]
    peer.keep()
    rows_ms = {}
    for count in rows:
        times = []
        for _ in range(args.repeats):
            peer.back()
            times.append(peer.step(count, True))
        rows_ms[str(count)] = 1e3 * statistics.median(times)
    return {
        "decode_tok_s": args.decode / sum(decode),
        "prefill_tok_s": args.prefill / prefill,
        "rows_ms": rows_ms,
        "engine": "llama.cpp",
        "revision": f"llama-cpp-python {lib.__version__}, llama.cpp {REVISIONS.get(lib.__version__, 'unknown')}",
        "system": lib.llama_print_system_info().decode().strip(" |"),
        "options": {"flash": args.flash, "repack": args.repack, "kv_type": args.kv_type, "threads": args.threads},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prefill", type=int, default=512, help="prompt tokens (512)")
    parser.add_argument("--decode", type=int, default=64, help="single-token steps (64)")
    parser.add_argument("--rows", default="1,2,4,8,16,32", help="rows per step, a list (1,2,4,8,16,32)")
    parser.add_argument("--repeats", type=int, default=9, help="steps per row count; the median counts (9)")
    parser.add_argument("--flash", choices=["on", "off"], default="on")
    parser.add_argument("--repack", choices=["on", "off"], default="on")
    parser.add_argument("--kv-type", choices=sorted(KV_TYPES), default="f16")
    args = parser.parse_args()
    rows = [int(count) for count in args.rows.split(",")]
    if min([args.threads, args.prefill, args.decode, args.repeats, *rows]) < 1 or max(rows) > UBATCH:
        parser.error(f"counts are at least 1, rows at most {UBATCH}")
    json.dump(measure(args, rows), sys.stdout)
    print()


if __name__ == "__main__":
    main()
