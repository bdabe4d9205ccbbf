"""The commands give what the program gives, and can be followed and stopped."""

import ast
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
import time

import glu_ckpt
import pytest
from glu_ckpt import _options
from glu_ckpt._spelling import in_python

#: Of both sides of a comparison, since they are measured.
MEASURED = {"destination", "seconds", "bytes_per_second", "peak_memory", "output", "disk_free", "estimated_seconds"}


def without_measured(found):
    return {name: value for name, value in found.items() if name not in MEASURED}


def test_inspect_is_the_programs_json(hub, program):
    assert glu_ckpt.inspect(hub) == json.loads(program("inspect", hub, "--json").stdout)


def test_convert_there_and_back(hub, program, tmp_path):
    there = glu_ckpt.convert(hub, tmp_path / "there", to="megatron", glu="interleaved:16")
    assert there["verified"] == "digest" and there["to"]["glu"] == "interleaved:16"
    back = glu_ckpt.convert(tmp_path / "there", tmp_path / "back", to="hf")
    assert back["digest"] == there["digest"] == glu_ckpt.digest(hub)["digest"]
    with glu_ckpt.open(hub) as first, glu_ckpt.open(tmp_path / "back") as last:
        assert set(first) == set(last)
        for name in first:
            assert first[name].info[:3] == last[name].info[:3]
            assert first[name].numpy(raw=True).tobytes() == last[name].numpy(raw=True).tobytes()
    verdict = glu_ckpt.verify(hub, tmp_path / "there")
    assert verdict["equal"] and verdict["digest_a"] == there["digest"]
    assert glu_ckpt.check(tmp_path / "there")["ok"]
    printed = program("convert", hub, tmp_path / "program", "--to", "megatron", "--glu", "interleaved:16", "--json")
    assert without_measured(json.loads(printed.stdout)) == without_measured(there)


def test_plan_writes_nothing(hub, tmp_path):
    planned = glu_ckpt.plan(hub, tmp_path / "out", naming="megatron")
    assert planned["bytes_written"] > 0 and not os.listdir(tmp_path)


def test_a_difference_is_a_result(hub, testdata):
    assert glu_ckpt.verify(hub, testdata / "hf" / "mixtral")["equal"] is False


def test_errors_are_the_programs(hub, program, tmp_path):
    cases = [
        (lambda: glu_ckpt.inspect("/no/such/path"), ["inspect", "/no/such/path"]),
        (lambda: glu_ckpt.convert(hub, tmp_path / "o", glu="interleaved:7", experts="grouped", naming="megatron"),
         ["convert", hub, tmp_path / "o", "--glu", "interleaved:7", "--experts", "grouped", "--naming", "megatron"]),
        (lambda: glu_ckpt.convert(hub, tmp_path / "o", glue="split"), ["convert", hub, tmp_path / "o", "--glue=split"]),
        (lambda: glu_ckpt.verify(hub, hub, jobs=0), ["verify", hub, hub, "--jobs=0"]),
    ]
    for call, words in cases:
        with pytest.raises(glu_ckpt.Error) as caught:
            call()
        printed = program(*words, "--json")
        told = json.loads(printed.stderr.splitlines()[-1])
        error = caught.value
        assert (error.slug, str(error), error.exit_status) == (told["error"], in_python(told["message"]), printed.returncode)
        assert (error.file or "", error.tensor or "") == (told["file"], told["tensor"])
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.slug, copy.args, copy.exit_status) == (error.slug, error.args, error.exit_status)
    assert not os.listdir(tmp_path)


#: Lines of the program, and what Python says.
SPELLINGS = {
    "o exists; choose another name, or --overwrite to replace it": "o exists; choose another name, or overwrite=True to replace it",
    "--glue is no option of glu-ckpt convert; did you mean --glu?": "'glue' is no option of glu_ckpt.convert; did you mean `glu`?",
    "jobs: --jobs: '0' is not a number": "jobs: jobs: '0' is not a number",
    "say --from-glu contiguous|interleaved:K, or": 'say from_glu="contiguous|interleaved:K", or',
    "--glu interleaved:1 writes what it expects; --decode bf16.": 'glu="interleaved:1" writes what it expects; decode="bf16".',
    "--to says which program; --decode reads it": "`to` says which program; `decode` reads it",
    "--dtype 'router=f32': no": 'dtype="router=f32": no',
    "`glu-ckpt inspect PATH --tensors` lists them, `glu-ckpt stamp` and `glu-ckpt layouts`":
        "`glu_ckpt.inspect(PATH, tensors=True)` lists them, `glu_ckpt.stamp` and `glu-ckpt layouts`",
    "what is missing\n  glu-ckpt convert 'A b' OUT --to hf --optimizer drop --from-glu ORDER --force":
        "what is missing\n  glu_ckpt.convert('A b', 'OUT', to=\"hf\", optimizer=\"drop\", from_glu=ORDER, force=True)",
    # Other programs' arguments are theirs.
    "append --padded-vocab-size 128 --bf16": "append --padded-vocab-size 128 --bf16",
}


@pytest.mark.parametrize("line", SPELLINGS)
def test_messages_speak_python(line):
    assert in_python(line) == SPELLINGS[line]


def test_no_message_speaks_the_command_line(hub, tmp_path, testdata):
    there = tmp_path / "there"
    glu_ckpt.convert(hub, there, to="megatron")
    with pytest.raises(glu_ckpt.Error, match="or overwrite=True to replace it"):
        glu_ckpt.convert(hub, there, to="megatron")
    with pytest.raises(glu_ckpt.Error, match=r"force=True copies it all the same"):
        glu_ckpt.convert(hub, tmp_path / "o")
    for source, options in (
        (testdata / "megatron" / "homogeneous", {"to": "hf"}),
        (testdata / "hf" / "gpt_oss", {"glu": "contiguous"}),
        (testdata / "quantized" / "mxfp4_gpt_oss", {"to": "megatron"}),
        (hub, {"too": "megatron"}),
    ):
        with pytest.raises(glu_ckpt.Error) as caught:
            glu_ckpt.convert(source, tmp_path / "o", **options)
        assert "--" not in str(caught.value), caught.value


def test_what_was_found_before_a_failure(hub, tmp_path):
    with pytest.raises(glu_ckpt.Error) as caught:
        glu_ckpt.plan(hub, tmp_path / "out")
    assert caught.value.exit_status == 4 and [
        in_python(refusal) for refusal in caught.value.result["refusals"]
    ] == [str(caught.value)]


def test_options_of_the_command_line_alone(hub):
    for name in ("json", "help", "quiet"):
        with pytest.raises(glu_ckpt.Error, match="command line"):
            glu_ckpt.inspect(hub, **{name: True})


#: Options that functions have no use for, or have as arguments.
OF_THE_COMMAND_LINE = {"help", "color", "json", "quiet", "verbose", "progress", "dry_run", "version", "check"}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("convert", "ConvertOptions"),
        ("plan", "ConvertOptions"),
        ("verify", "VerifyOptions"),
        ("digest", "DigestOptions"),
        ("check", "CheckOptions"),
        ("inspect", "InspectOptions"),
        ("diff", "DiffOptions"),
        ("report", "ReportOptions"),
        ("stamp", "StampOptions"),
    ],
)
def test_typed_options_are_the_parsers(command, options, program):
    known = re.findall(r"^ +(?:-\w, ?)?--([a-z][a-z-]*)", program(command, "--help").stdout, re.MULTILINE)
    tree = ast.parse(pathlib.Path(_options.__file__).read_text())
    [fields] = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == options]
    typed = {field.target.id for field in fields if isinstance(field, ast.AnnAssign)}
    told = set(re.findall(r"^    (\w+): ", _options.ABOUT["convert" if command == "plan" else command], re.MULTILINE))
    assert told == typed
    assert typed == {name.replace("-", "_") for name in known} - OF_THE_COMMAND_LINE


def test_report(hub, tmp_path):
    made = glu_ckpt.report(hub, html=tmp_path / "one.html")
    assert made["equal"] is None and made["bytes"] == (tmp_path / "one.html").stat().st_size
    glu_ckpt.convert(hub, tmp_path / "other", to="megatron")
    assert glu_ckpt.report(hub, tmp_path / "other", html=tmp_path / "two.html")["equal"]
    with pytest.raises(glu_ckpt.Error) as caught:
        glu_ckpt.report(hub, html=tmp_path / "one.html")
    assert caught.value.slug == "output-exists"
    again = glu_ckpt.report(hub, html=tmp_path / "one.html", overwrite=True)
    # The page has the line that made it.
    assert again.pop("bytes") == made.pop("bytes") + len(" --overwrite") and again == made


def test_manifest(hub, tmp_path):
    glu_ckpt.convert(hub, tmp_path / "out", to="megatron", manifest="sha256")
    found = glu_ckpt.check(tmp_path / "out", manifest="sha256")
    assert found["ok"] and {file["state"] for file in found["manifest"]} == {"ok"}


def test_paths_with_odd_names(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("-q", "--force", "a b", "ä"):
        assert glu_ckpt.convert(hub, name, naming="megatron")["output"].endswith(name)
        assert glu_ckpt.verify(hub, name)["equal"]


def test_a_path_ends_with_its_text(hub, tmp_path):
    for call in (
        lambda: glu_ckpt.inspect(f"{hub}\0other"),
        lambda: glu_ckpt.open(f"{hub}\0other"),
        lambda: glu_ckpt.inspect(hub, from_glu="contiguous\0"),
        lambda: glu_ckpt.convert(hub, f"{tmp_path}/o\0", naming="megatron"),
    ):
        with pytest.raises(ValueError, match="embedded null byte"):
            call()
    assert not os.listdir(tmp_path)


def test_an_option_without_its_value_takes_no_path(hub, tmp_path):
    for options in ({"glu": True, "naming": "megatron"}, {"naming": "megatron", "pad_experts": True}):
        with pytest.raises(glu_ckpt.Error) as caught:
            glu_ckpt.convert(hub, tmp_path / "o", **options)
        assert caught.value.slug == "usage" and str(hub) not in str(caught.value)


def test_progress_tells_each_stage(hub, tmp_path):
    lines = []
    glu_ckpt.convert(hub, tmp_path / "out", naming="megatron", progress=lines.append)
    assert all(set(line) == {"phase", "bytes", "total", "seconds", "bottleneck"} for line in lines)
    phases = [line["phase"] for line in lines]
    assert "converting" in phases
    last = [line for line in lines if line["phase"] == "converting"][-1]
    assert last["bytes"] == last["total"] > 0


def test_what_progress_raises_stops_resumably(hub, tmp_path):
    class Stop(Exception):
        pass

    def stop(line):
        raise Stop(line["phase"])

    with pytest.raises(Stop):
        glu_ckpt.convert(hub, tmp_path / "out", naming="megatron", progress=stop)
    assert os.listdir(tmp_path) == ["out.partial"]
    found = glu_ckpt.convert(hub, tmp_path / "out", naming="megatron", resume=True)
    assert found["digest"] == glu_ckpt.digest(hub)["digest"] and os.listdir(tmp_path) == ["out"]


def test_ctrl_c_stops_resumably(hub, tmp_path):
    def interrupt(line):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        glu_ckpt.convert(hub, tmp_path / "out", naming="megatron", progress=interrupt)
    assert os.listdir(tmp_path) == ["out.partial"]
    assert glu_ckpt.convert(hub, tmp_path / "out", naming="megatron", resume=True)["verified"] == "digest"


def test_signals_of_a_terminal_reach_a_working_call(hub, tmp_path):
    """Without a progress callable: the call itself looks at signals while its thread works."""
    code = f"""
import os, signal, threading, glu_ckpt
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        glu_ckpt.verify({str(hub)!r}, {str(hub)!r})
except KeyboardInterrupt:
    print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "stopped\n", done.stderr


def test_other_threads_run_meanwhile(hub):
    """The call waits in its progress callable for what another thread does: with the GIL held it never would."""
    seen = threading.Event()
    thread = threading.Thread(target=lambda: (time.sleep(0.05), seen.set()))

    def wait(line):
        if not thread.ident:
            thread.start()

    glu_ckpt.verify(hub, hub, progress=wait)
    assert seen.wait(30)


def test_calls_of_several_threads(hub):
    results = []
    threads = [threading.Thread(target=lambda: results.append(glu_ckpt.digest(hub)["digest"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and len(set(results)) == 1


def test_help_lists_the_options():
    for function in (glu_ckpt.convert, glu_ckpt.plan):
        assert "    from_glu: " in function.__doc__
    assert "    strict: " in glu_ckpt.check.__doc__


def test_a_notebook_shows_the_report(hub):
    shown = glu_ckpt.report(hub)
    page = pathlib.Path(shown["output"]).read_text()
    assert shown._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE') and len(shown._repr_html_()) > len(page)


def test_paths_are_bytes_too(hub):
    assert glu_ckpt.inspect(os.fsencode(hub))["format"] == "safetensors"
    with pytest.raises(TypeError, match="not int"):
        glu_ckpt.inspect(3)
    assert repr(glu_ckpt.open(os.fsencode(hub))).startswith("<Checkpoint safetensors, ")


def test_a_checkpoint_is_read_after_its_block(hub):
    with glu_ckpt.open(hub) as checkpoint:
        name = next(iter(checkpoint.keys()))
        taken = checkpoint[name]
    assert checkpoint[name].numpy(raw=True).tobytes() == taken.numpy(raw=True).tobytes()


def test_progress_is_named(hub, tmp_path):
    with pytest.raises(TypeError, match="positional"):
        glu_ckpt.convert(hub, tmp_path / "out", print)


def test_the_package_imports_no_library():
    code = "import sys, glu_ckpt; print([m for m in ('torch', 'numpy', 'cupy', 'jax', 'ml_dtypes') if m in sys.modules])"
    assert ast.literal_eval(subprocess.check_output([sys.executable, "-c", code], text=True)) == []


def test_the_program_is_installed(program):
    assert program("--version").stdout.split()[-1] == glu_ckpt.__version__


def test_type_hints_are_installed():
    import importlib.resources

    files = importlib.resources.files(glu_ckpt)
    assert (files / "py.typed").is_file()
    stubs = ast.parse((files / "_core.pyi").read_text())
    assert {"run_command", "Reader"} <= {getattr(node, "name", "") for node in stubs.body}
