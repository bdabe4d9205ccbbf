#!/usr/bin/env python3
"""Changes sound checkpoints, runs the program on them, and lets an independent reader judge what it said.

usage: run_mutations.py PROGRAM [--seed S] [--count N | --thorough] [--only NUMBER] [--jobs J] [--keep FOLDER] [--inspect]
A checkpoint of testdata, and those of other formats that the program makes of them, gets one to two changes: of bytes, or
of what they mean (mutations.py). oracle.py reads the result without the program and says whether it is one model. Wrong is
a crash, a time over 20 s, a status outside of 0 to 6, more than 256 MiB, an OUT after a refusal, a plan that ends otherwise
than its convert, status 0 over what is no model, and an output whose tensors are not those that were moved by hand.
With --inspect it is also wrong that `inspect` names a program that loads what is no model, and no problem of it: that is
not the rule yet, as it asks more of the program than it looks at.
The last line is `N passed, M failed`; a failure prints what makes it again.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import checkpoint  # noqa: E402
import models  # noqa: E402
import mutations  # noqa: E402
import oracle  # noqa: E402

TESTDATA = pathlib.Path(os.environ.get("GLU_CKPT_TESTDATA", HERE.parent.parent / "testdata"))
SLUG = re.compile(r"\[([a-z0-9]+(?:-[a-z0-9]+)*)\]\s*$", re.MULTILINE)
DATA_SLUGS = (["zip-crc"], ["copy-differs"])
SECONDS, MEMORY = 20, 256 << 20
WHOLE = ["hf/*", "whole/*/hf"]
OTHERS = ["torch/dcp1", "torch/dcp2", "torch/model_optim_rng.pt", "torch/pytorch_model.bin", "megatron/ep2", "megatron/legacy_tp2"]


class Wrong(Exception):
    pass


def is_known(path):
    """Whether the oracle reads models of the family."""
    model_type = json.loads((path / "config.json").read_text()).get("model_type")
    return isinstance(model_type, str) and model_type in models.FAMILIES


class Bench:
    """What all cases of one process share: the program, a folder, the sound checkpoints."""

    def __init__(self, program, folder, is_strict):
        self.program, self.folder, self.is_strict = program, folder, is_strict
        with open(program, "rb") as file:
            self.is_sanitized = b"__asan_init" in file.read()
        self.models = [p for pattern in WHOLE for p in sorted(TESTDATA.glob(pattern)) if is_known(p)]
        self.quantized = sorted((TESTDATA / "quantized").iterdir())
        galleries = pathlib.Path(os.environ.get("GLU_CKPT_GALLERIES", pathlib.Path(program).parent / "tests/galleries"))
        self.tiny = sorted(p for p in (galleries / "tiny").iterdir() if p.is_dir())
        self.others = [TESTDATA / name for name in OTHERS]
        self.digests = {}

    def call(self, *words):
        """Status, stdout and stderr of the program, after what no input may cause."""
        with open(self.folder / "said", "w+b") as said, open(self.folder / "err", "w+b") as err:
            child = subprocess.Popen([self.program, *map(str, words)], stdin=subprocess.DEVNULL, stdout=said, stderr=err,
                                     cwd=self.folder, env={**os.environ, "NO_COLOR": "1"})  # fmt: skip
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                _, status, usage = os.wait4(child.pid, 0)
            except TimeoutError:
                child.kill()
                raise Wrong(f"{words[0]} takes more than {SECONDS} s") from None
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            texts = []
            for file in (said, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        line = " ".join(map(str, words))
        if not 0 <= child.returncode <= 6:
            raise Wrong(f"{line}\n  ends with {child.returncode}: {texts[1][-1500:]}")
        if usage.ru_maxrss * 1024 > MEMORY and not self.is_sanitized:
            raise Wrong(f"{line}\n  takes {usage.ru_maxrss >> 10} MiB")
        return child.returncode, *texts

    def digest(self, path):
        if path not in self.digests:
            status, said, err = self.call("digest", path)
            self.digests[path] = said.split()[0] if status == 0 else None
        return self.digests[path]


class Case:
    def __init__(self, bench, seed, number):
        self.bench, self.number = bench, number
        self.rng = random.Random(f"{seed} {number}")
        self.what, self.source, self.out = [], bench.folder / "src", bench.folder / "out"

    def run(self):
        rng, bench = self.rng, self.bench
        kind = rng.choices(["model", "quantized", "tiny", "other"], [10, 5, 1, 3])[0]
        pool = {"model": bench.models, "quantized": bench.quantized, "tiny": bench.tiny, "other": bench.others}[kind]
        self.base = rng.choice(pool)
        self.what.append("/".join(self.base.parts[-2:]))
        if kind == "other":
            return self.run_other()
        c = checkpoint.Checkpoint(self.base)
        sound = c.tensors()
        harmless = True
        if rng.random() < 0.8 or c.config is None:
            for _ in range(rng.choice([1, 1, 1, 2])):
                mutation = rng.choice(mutations.SEMANTIC if c.config is not None else mutations.SEMANTIC[9:])
                self.what.append(mutation(rng, c))
                harmless = harmless and mutation in mutations.HARMLESS
            files = c.files()
        else:
            files, harmless = c.files(), False
            self.what.append(mutations.bytes_of(rng, files))
        self.source.mkdir()
        checkpoint.write(self.source, files)
        self.verdict = oracle.judge(files)
        if kind == "tiny" and self.verdict.kind != "files":
            self.verdict.kind = "unclear"
        self.same = oracle.is_same(self.verdict.tensors, sound) if self.verdict.tensors else None
        if harmless and kind == "model" and self.verdict.kind != "sound":
            raise Wrong(f"the oracle takes a sound checkpoint for a broken one: {self.verdict.reason}")
        self.harmless, self.is_quantized = harmless and kind != "tiny", kind == "quantized"
        self.inspect()
        rng.choices([self.to_megatron, self.relaid, self.compared, self.digested, self.reported, self.stamped], [8, 3, 2, 2, 1, 1])[0]()

    def refuse_zero(self, status, words, kinds=("files", "model")):
        if status == 0 and self.verdict.kind in kinds:
            raise Wrong(f"{words} ends with 0, and the input is none: {self.verdict.reason}")

    def inspect(self):
        status, said, err = self.bench.call("inspect", self.source, "--json")
        self.refuse_zero(status, "inspect", ("files",))
        if status == 0:
            seen = json.loads(said)
            is_none = self.verdict.kind == "model" or self.verdict.is_wrapped
            if self.bench.is_strict and is_none and not seen["problems"] and seen["loads_in"]:
                raise Wrong(f"inspect names {seen['loads_in'][0]['program']} and no problem: {self.verdict.reason}")
            if self.harmless and seen["problems"]:
                raise Wrong(f"inspect finds problems in a sound checkpoint: {seen['problems']}")

    def convert(self, *options):
        """Status of convert, after plan ended alike; the output is there then, or nothing of it."""
        planned = self.bench.call("plan", self.source, self.out, *options)
        if os.path.lexists(self.out) or os.path.lexists(f"{self.out}.partial"):
            raise Wrong("plan writes")
        done = self.bench.call("convert", self.source, self.out, *options)
        slugs = [SLUG.findall(err)[-1:] if status in (3, 4) else [] for status, _, err in (planned, done)]
        line = f"convert SRC OUT {' '.join(options)}"
        # What only the data tell is beyond `plan`, which reads headers. Of torch_dist that is .metadata: the chunks in
        # .distcp files are zips among the data, as many as there are parameters and ranks.
        of_data = planned[0] == 0 and done[0] == 3 and (slugs[1] in DATA_SLUGS or ".distcp: byte" in done[2])
        if (planned[0], slugs[0]) != (done[0], slugs[1]) and not of_data:
            raise Wrong(f"{line}\n  plan ends with {planned[0]} {slugs[0]}, convert with {done[0]} {slugs[1]}: {planned[2][-600:]}\n{done[2][-600:]}")
        if done[0] != 0 and (os.path.lexists(self.out) or os.path.lexists(f"{self.out}.partial")):
            raise Wrong(f"{line} ends with {done[0]} and leaves OUT")
        if self.harmless and done[0] != 0:
            raise Wrong(f"{line} refuses a sound checkpoint: {done[2][-600:]}")
        return done[0]

    def to_megatron(self):
        block = self.rng.choice([0, 0, 0, 1, 2, 4])
        if self.verdict.model is not None and self.verdict.model.dense:
            block = 0
        as_trained = self.rng.random() < 0.3
        options = ["--to", "megatron", "-q"] + ([] if as_trained else ["--format", "safetensors"])
        options += ["--glu", f"interleaved:{block}"] if block else []
        options += ["--decode", "bf16"] if self.is_quantized else []
        status = self.convert(*options)
        self.refuse_zero(status, "convert " + " ".join(options))
        if status or self.verdict.kind != "sound":
            return
        if as_trained:
            wrong = oracle.wrong_arguments((self.out / "megatron_args.txt").read_text(), self.verdict.model)
        elif self.is_quantized:
            if not self.same:
                return  # Decoding is judged where the right values are known: the checkpoint's as it was.
            decoded, _ = checkpoint.parse((self.base / "decoded.safetensors").read_bytes())
            wrong = oracle.wrong_megatron(self.out, self.verdict, block, decoded)
        else:
            wrong = oracle.wrong_megatron(self.out, self.verdict, block, None)
        if wrong:
            raise Wrong(f"convert SRC OUT {' '.join(options)}: {wrong}")

    def relaid(self):
        options = self.rng.choice([
            ["--experts", "grouped", "--glu", "contiguous"], ["--glu", "interleaved:2"], ["--format", "torch"], ["--format", "torch-dist"],
            ["--to", "torchtitan"], ["--to", "hf", "--decode", "bf16"], ["--scope", "experts", "--naming", "megatron"],
            ["--to", "hf:mixtral"], ["--layers", "0"], ["--max-shard-size", "50KB", "--force"], ["--encode", "mxfp8"],
        ])  # fmt: skip
        harmless, self.harmless = self.harmless, False
        status = self.convert(*options, "-q", "--allow-foreign-order")
        self.harmless = harmless
        self.refuse_zero(status, "convert " + " ".join(options), ("files",))

    def compared(self):
        command = self.rng.choice(["verify", "diff"])
        status, _, err = self.bench.call(command, self.source, self.base)
        self.refuse_zero(status, command, ("files",))
        if status == 0 and self.same is False and self.verdict.kind in ("sound", "model"):
            raise Wrong(f"{command} says that the same model is there: {self.verdict.reason or 'its tensors differ'}")
        if status != 0 and self.same and self.harmless:
            raise Wrong(f"{command} says of the same model {status}: {err[-600:]}")

    def digested(self):
        status, said, err = self.bench.call(self.rng.choice(["digest", "digest", "check"]), self.source)
        self.refuse_zero(status, "digest", ("files",))
        right = self.bench.digest(self.base)
        if status != 0 or not said.startswith("gck") or self.verdict.kind != "sound" or self.verdict.is_wrapped:
            return
        # A configuration that a family's defaults change makes another model of the same tensors, which this reader of
        # tensors cannot know.
        is_equal = said.split()[0] == right
        if is_equal and not self.same or not is_equal and self.same and self.harmless:
            raise Wrong(f"the digest of {'the same' if self.same else 'another'} model is {said.split()[0]}, was {right}")

    def reported(self):
        status, _, _ = self.bench.call("report", self.source, "--html", self.out)
        self.refuse_zero(status, "report", ("files",))
        if status != 0 and os.path.lexists(self.out):
            raise Wrong("report refuses and leaves a page")

    def stamped(self):
        before = oracle.read_folder(self.source)
        dry = ["--dry-run"] if self.rng.random() < 0.5 else []
        status, _, _ = self.bench.call("stamp", self.source, "--glu", self.rng.choice(["contiguous", "interleaved:8"]), *dry)
        self.refuse_zero(status, "stamp", ("files",))
        if (status != 0 or dry) and oracle.read_folder(self.source) != before:
            raise Wrong(f"stamp ends with {status} and changes the checkpoint")

    def run_other(self):
        """Bytes of other formats: no independent reader, so only what holds of every input."""
        self.verdict, self.harmless = oracle.Verdict("unclear"), False
        files = oracle.read_folder(self.base) if self.base.is_dir() else {self.base.name: self.base.read_bytes()}
        files.pop("truth.safetensors", None)
        self.what.append(mutations.bytes_of(self.rng, files))
        self.source.mkdir()
        checkpoint.write(self.source, files)
        if not self.base.is_dir():
            self.source = self.source / self.base.name
        self.bench.call(self.rng.choice(["inspect", "inspect", "digest", "check"]), self.source)
        if self.rng.random() < 0.5:
            self.convert(*self.rng.choice([["--format", "safetensors"], ["--glu", "interleaved:2"], ["--to", "hf"]]), "-q",
                         "--from-glu", "contiguous", "--from-shared-glu", "contiguous", "--from-optimizer-glu", "contiguous")  # fmt: skip


def expire(number, frame):
    raise TimeoutError


def run_some(arguments):
    program, seed, numbers, keep, is_strict = arguments
    signal.signal(signal.SIGALRM, expire)
    failures = []
    # In memory, for a conversion waits for the disk.
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        bench = Bench(program, pathlib.Path(folder), is_strict)
        for number in numbers:
            case = Case(bench, seed, number)
            try:
                case.run()
            except Wrong as wrong:
                failures.append(f"--seed {seed} --only {number}: {'; '.join(case.what)}\n  {wrong}")
            except Exception as error:  # the reader's own fault, with what made it
                failures.append(f"--seed {seed} --only {number}: {'; '.join(case.what)}\n  the test fails: {error!r}")
            if keep:
                shutil.copytree(folder, keep, dirs_exist_ok=True)
            for left in ("src", "out", "out.partial"):
                path = pathlib.Path(folder) / left
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return len(numbers), failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=48)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--thorough", action="store_true", help="200,000 cases")
    parser.add_argument("--only", type=int)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--keep", help="a folder for the input and output of --only")
    parser.add_argument("--inspect", action="store_true")
    options = parser.parse_args()
    program = str(pathlib.Path(options.program).resolve())
    options.count = 200_000 if options.thorough else options.count
    numbers = [options.only] if options.only is not None else list(range(options.count))
    chunks = [numbers[i : i + 100] for i in range(0, len(numbers), 100)]
    print(f"mutations: seed {options.seed}, {len(numbers)} cases")
    ran = failed = 0
    with multiprocessing.Pool(min(options.jobs, len(chunks))) as pool:
        for count, failures in pool.imap_unordered(run_some, [(program, options.seed, chunk, options.keep, options.inspect) for chunk in chunks]):
            ran, failed = ran + count, failed + len(failures)
            print(*failures, sep="\n", end="\n" if failures else "", flush=True)
    print(f"{ran - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
