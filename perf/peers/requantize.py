#!/usr/bin/env python3
"""Writes a GGUF file again in another quantisation, with the peer's library: a file for speed only.

The peer is at its fastest on types it has repacked kernels for (Q4_0, Q8_0 among them). The weights lose a little more
with every turn, so no figure of quality may come from such a file.
"""

import argparse

import llama_cpp as lib

TYPES = {"Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0, "Q5_0": lib.LLAMA_FTYPE_MOSTLY_Q5_0,
         "Q4_K_M": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M, "Q6_K": lib.LLAMA_FTYPE_MOSTLY_Q6_K}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="the GGUF file to read")
    parser.add_argument("--type", required=True, choices=sorted(TYPES))
    parser.add_argument("--out", required=True, help="the GGUF file to write")
    args = parser.parse_args()
    params = lib.llama_model_quantize_default_params()
    params.ftype = TYPES[args.type]
    params.allow_requantize = True
    status = lib.llama_model_quantize(args.model.encode(), args.out.encode(), params)
    if status != 0:
        raise SystemExit(f"{args.model}: llama_model_quantize returned {status}")


if __name__ == "__main__":
    main()
