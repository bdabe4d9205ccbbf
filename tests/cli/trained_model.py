"""Makes, in a folder, what docs/guide.md serves: `base`, a small DeepSeek-V3 of the hub, `tuned`, the same without multi-token
prediction, and `my-adapter`, which was trained on that. usage: trained_model.py TESTDATA FOLDER"""
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cases"))
from case import read_tensors, write_safetensors  # noqa: E402
from cases_adapters import write_adapter  # noqa: E402

base, folder = pathlib.Path(sys.argv[1]) / "whole/deepseek_v3/hf", pathlib.Path(sys.argv[2])
shutil.copytree(base, folder / "base")
(folder / "tuned").mkdir()
shutil.copy(base / "config.json", folder / "tuned")
kept = {name: tensor for name, tensor in read_tensors(base).items() if not name.startswith("model.layers.3.")}
write_safetensors(folder / "tuned/model.safetensors", kept)
write_adapter(folder / "my-adapter", folder / "tuned", "DeepseekV3ForCausalLM", others="-")
