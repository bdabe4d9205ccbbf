#!/usr/bin/env python3
"""Combines options of `convert` at random, on sound checkpoints, and asks the program about its own output.

usage: run_options.py PROGRAM [--seed S] [--count N] [--only NUMBER]
Wrong is what run_mutations.py calls so of any input, a status other than 0, 2, 3 or 4, a message that asks for a report,
and an output that `check` refuses, that `verify` with the same answers calls another model than its source, or that
comes back to Hugging Face's form as another one. Example: `--decode bf16 --encode nvfp4` of FP8 weights was written right
and called different, for `verify` decoded and encoded the output once more.
The last line is `N passed, M failed`; a failure prints what makes it again.
"""
import argparse
import collections
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile

import run_mutations
from run_mutations import Bench, Wrong

# Options of convert, and how `verify` is told the same of A; None where it has no words for it.
SAME, NOTHING = object(), ()
VIEWS = [
    (("--decode", "bf16"), SAME), (("--decode", "f32"), SAME), (("--layers", "0"), ("--from-layers", "0")),
    (("--layers", "1"), ("--from-layers", "1")), (("--layers", "0-1"), ("--from-layers", "0-1")),
    (("--drop", "mtp"), SAME), (("--drop", "vision"), SAME), (("--keep-experts", "0-1"), SAME),
    (("--experts", "1-2"), ("--keep-experts", "1-2")), (("--pad-experts", "32"), NOTHING), (("--pad-experts", "7"), NOTHING),
    (("--unpad",), NOTHING), (("--dtype", "router=f32"), SAME), (("--dtype", "norm/*=f32"), SAME), (("--dtype", "*=f32"), SAME),
    (("--dtype", "*=f16", "--allow-narrowing"), SAME), (("--dtype", "*=bf16", "--allow-narrowing"), SAME),
    (("--optimizer", "drop"), None), (("--unknown", "keep"), None), (("--scope", "experts"), None),
]  # fmt: skip
ENCODINGS = ["fp8:128x128", "fp8:128x128:ue8m0", "fp8:channel", "mxfp8", "mxfp4", "nvfp4", "int4:g32", "int4:g128",
             "nvfp4 --encode-as compressed-tensors"]  # fmt: skip
TARGETS = ["megatron", "megatron", "megatron", "hf", "hf", "torchtitan", "vllm", "sglang", "hf:qwen3_moe"]
LAYOUTS = [
    ("--experts", "indexed"), ("--experts", "grouped"), ("--glu", "split"), ("--glu", "contiguous"), ("--glu", "interleaved:4"),
    ("--glu", "interleaved:8"), ("--shared-glu", "contiguous"), ("--shared-glu", "interleaved:4"), ("--bias-experts", "indexed"),
    ("--bias-experts", "grouped"), ("--format", "safetensors"), ("--format", "torch"), ("--format", "torch-dist"),
    ("--stack-layers",), ("--max-shard-size", "40kB"), ("--manifest", "sha256"), ("--allow-foreign-order",), ("--force",),
]  # fmt: skip


class Case(run_mutations.Case):
    def run(self):
        rng, bench = self.rng, self.bench
        self.harmless = self.is_quantized = False
        self.source = rng.choice(bench.sound * 2 + bench.quantized + bench.others)
        views = rng.sample(VIEWS, rng.choice([0, 0, 1, 1, 2]))
        if rng.random() < 0.25:
            encode = ("--encode", *rng.choice(ENCODINGS).split())
            views += [(encode, SAME)]
            if self.source in bench.quantized and not any("--decode" in words for words, _ in views):
                views.insert(0, (("--decode", "bf16"), SAME))
        options = ["--to", rng.choice(TARGETS)] if rng.random() < 0.8 else []
        for words in [words for words, _ in views] + rng.sample(LAYOUTS, rng.choice([0, 1, 1, 2])):
            if words[0] not in options:
                options += words
            elif any(words == each for each, _ in views):
                views = [view for view in views if view[0] != words]
        self.what.append(f"{'/'.join(self.source.parts[-3:])}: convert SRC OUT {' '.join(options)}")
        status = self.convert(*options)
        bench.statuses[status] += 1
        if status not in (0, 2, 3, 4):
            raise Wrong(f"ends with {status}")
        if status == 0:
            self.look_at_output(views)

    def look_at_output(self, views):
        self.must("check", self.out)
        if any(same is None for _, same in views):
            return
        answers = [word for words, same in views for word in (words if same is SAME else same)]
        self.must("verify", self.source, self.out, *answers)
        back = self.bench.folder / "back"
        status, _, err = self.bench.call("convert", self.out, back, "--to", "hf", "--force", "-q")
        if status == 0:
            self.bench.statuses["back"] += 1
            self.must("verify", self.source, back, *answers)
        elif status not in (3, 4):
            raise Wrong(f"on its way back it ends with {status}: {err[-600:]}")

    def must(self, *words):
        status, said, err = self.bench.call(*words)
        # Layouts whose order nothing says are not compared, and no model is called different.
        if status != 0 and "[unknown-glu]" not in err:
            raise Wrong(f"{' '.join(map(str, words))}\n  ends with {status}: {said[-600:]}{err[-600:]}")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--only", type=int)
    asked = parser.parse_args()
    signal.signal(signal.SIGALRM, run_mutations.expire)
    failed = 0
    numbers = range(asked.count) if asked.only is None else [asked.only]
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        bench = Bench(str(pathlib.Path(asked.program).resolve()), pathlib.Path(folder), False)
        bench.statuses = collections.Counter()
        bench.sound = [path for pattern in run_mutations.WHOLE for path in sorted(run_mutations.TESTDATA.glob(pattern))]
        for number in numbers:
            case = Case(bench, asked.seed, number)
            try:
                case.run()
            except Wrong as wrong:
                failed += 1
                print(f"--seed {asked.seed} --only {number}: {', '.join(case.what)}\n  {wrong}", flush=True)
            for left in pathlib.Path(folder).iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    print(f"of {len(numbers)}, {bench.statuses[0]} were converted, {bench.statuses['back']} of them back")
    if len(numbers) > 100 and bench.statuses["back"] * 10 < len(numbers):
        failed += 1
        print("fewer than a tenth came back: the options no longer fit the program")
    print(f"{len(numbers) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
