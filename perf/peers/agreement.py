#!/usr/bin/env python3
"""Compares the first choices of `engine-bench eval` with llama.cpp's at every position of recorded prompts.

Run with the interpreter that has llama-cpp-python (README.md). The peer computes each prompt as one micro-batch on one
thread with an F32 cache, without flash attention and without repacking: integer products, nothing else rounded. Prints
one CSV row per setting of our engine and one per position where the choices differ, with the distance by which the
peer prefers its own.
"""

import argparse
import ctypes
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import llama_cpp as lib
import numpy as np

SETTINGS = {
    "integer activations, F32 cache": ["--kv-type", "f32"],
    "integer activations, F16 cache": [],
    "float activations, F32 cache": ["--kv-type", "f32", "--exact-activations"],
}


@lib.llama_log_callback
def SILENT(_level, _text, _data):
    """Drops llama.cpp's log; errors come back as statuses."""


def prompts(path):
    """The arrays `p0.tokens`, `p1.tokens`, ... of a safetensors file."""
    raw = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    lists = []
    while (entry := header.get(f"p{len(lists)}.tokens")) is not None:
        first, end = entry["data_offsets"]
        lists.append(np.frombuffer(raw[8 + size + first : 8 + size + end], "<i4").tolist())
    return lists


def peer_logits(model, tokens):
    """`[positions][vocabulary]` of one sequence."""
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(64, len(tokens))
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = 0
    params.type_k = params.type_v = lib.GGML_TYPE_F32
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp refuses these context parameters")
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    status = lib.llama_decode(context, batch)
    if status != 0:
        raise SystemExit(f"llama_decode returned {status} for {len(tokens)} rows")
    row = lambda i: np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (vocab,)).copy()
    logits = np.stack([row(i) for i in range(len(tokens))])
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    return logits


def our_choices(bench, model, sequences, flags):
    """The best id at every position of every sequence."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = Path(folder, "in.json"), Path(folder, "out.json")
        tokens.write_text(json.dumps({"sequences": sequences, "continue": 0, "mtp_depth": 0}))
        command = [bench, "eval", "--model", model, "--tokens", str(tokens), "--out", str(out), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result = json.loads(out.read_text())
    return [[top[0][0] for top in sequence["top10"]] for sequence in result["sequences"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="target/release/engine-bench")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, help="safetensors file with p0.tokens, p1.tokens, ...")
    args = parser.parse_args()

    lib.llama_log_set(SILENT, ctypes.c_void_p(0))
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = False
    model = lib.llama_model_load_from_file(args.model.encode(), params)
    if not model:
        raise SystemExit(f"{args.model}: llama.cpp cannot load it")
    sequences = prompts(args.prompts)
    reference = [peer_logits(model, tokens) for tokens in sequences]

    print("setting,prompt,position,ours,peer,peer_prefers_by")
    for setting, flags in SETTINGS.items():
        choices = our_choices(args.bench, args.model, sequences, flags)
        positions = equal = 0
        for p, (ours, rows) in enumerate(zip(choices, reference, strict=True)):
            for i, (choice, row) in enumerate(zip(ours, rows, strict=True)):
                positions += 1
                best = int(row.argmax())
                if choice == best:
                    equal += 1
                else:
                    print(f'"{setting}",{p},{i},{choice},{best},{row[best] - row[choice]:.4f}')
        print(f'"{setting}",all,all,{equal} of {positions} equal,{equal / positions:.4f},')
    sys.stdout.flush()


if __name__ == "__main__":
    main()
