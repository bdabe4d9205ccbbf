#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "core/readable.hpp"
#include "format/checkpoint_files.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

using namespace std::string_view_literals;

constexpr auto kFormatsRead =
    ".safetensors, PyTorch's .pt, .pth and .bin, and torch.distributed.checkpoint directories are read"sv;

struct FileKind {
  /// The end of its name; empty where the first bytes alone tell.
  std::string_view suffix;
  /// Its first bytes; empty where the name alone tells.
  std::string_view signature;
  std::string_view what;
  /// Empty: the formats that are read.
  std::string_view way = {};
};

constexpr auto kHubAgain = "take the model in safetensors from where it was made";
constexpr auto kUnpack = "unpack it, and give the checkpoint in it";

constexpr FileKind kFileKinds[] = {
    {".gguf", "GGUF", "a GGUF file (llama.cpp)", kHubAgain},
    {".nemo",
     {},
     "a NeMo archive (a tar file)",
     "unpack it with `tar xf`, and give the directory of its weights that has a .metadata"},
    {".npz", {}, "a NumPy file"},
    {".npy", "\x93NUMPY", "a NumPy file"},
    {".ckpt", {}, "a .ckpt file", "if torch.save wrote it, as Lightning does, a copy of it named .pt is"},
    {".h5", "\x89HDF\r\n\x1a\n", "an HDF5 file (Keras, TensorFlow)", kHubAgain},
    {".msgpack", {}, "a file of Flax", "transformers writes safetensors of it (from_pretrained with from_flax=True)"},
    {".onnx", {}, "an ONNX model", kHubAgain},
    {".tflite", {}, "a TensorFlow Lite model", kHubAgain},
    {".engine", {}, "an engine of TensorRT", kHubAgain},
    {".tar", {}, "an archive", kUnpack},
    {".gz", "\x1f\x8b", "a file that gzip packed", kUnpack},
    {".tgz", {}, "an archive", kUnpack},
    {".zst", "\x28\xb5\x2f\xfd", "a file that zstd packed", kUnpack},
    {".xz",
     "\xfd"
     "7zXZ",
     "a file that xz packed", kUnpack},
    {".zip", {}, "an archive", kUnpack},
    {".7z", "7z\xbc\xaf", "an archive", kUnpack},
    {".json", {}, "a JSON file, no weights", "give the directory that it is in"},
    {".yaml", {}, "a YAML file, no weights", "give the directory that it is in"},
};

std::string kind_text(const FileKind& kind) {
  if (kind.what.ends_with("no weights")) return fmt::format("is {}; {}", kind.what, kind.way);
  return fmt::format("is {}, which is not read; {}", kind.what, kind.way.empty() ? kFormatsRead : kind.way);
}

const FileKind* kind_of_name(std::string_view name) {
  const auto found =
      std::ranges::find_if(kFileKinds, [&](const FileKind& kind) { return name.ends_with(kind.suffix); });
  return found == std::end(kFileKinds) ? nullptr : found;
}

const FileKind* kind_of_bytes(const fs::path& file) {
  const File opened = File::open_read(file);
  std::string first(static_cast<std::size_t>(std::min<i64>(opened.size(), 16)), '\0');
  opened.pread_exact(std::as_writable_bytes(std::span(first)), 0);
  const auto found = std::ranges::find_if(
      kFileKinds, [&](const FileKind& kind) { return !kind.signature.empty() && first.starts_with(kind.signature); });
  return found == std::end(kFileKinds) ? nullptr : found;
}

/// A directory that a program leaves, known by a name in it.
struct DirectoryKind {
  /// A name begins and ends so.
  std::string_view prefix;
  std::string_view suffix;
  std::string_view what;
};

constexpr DirectoryKind kDirectoryKinds[] = {
    {"model_index.json", "",
     "it is a pipeline of diffusers, which makes images; its parts (unet/, transformer/) can be looked at one by one"},
    {"zero_to_fp32.py", "",
     "it is a checkpoint of DeepSpeed; `python zero_to_fp32.py . OUT` in it writes one that is read"},
    {"zero_pp_rank_", "",
     "it is a checkpoint of DeepSpeed; `python zero_to_fp32.py . OUT` in the directory above writes one that is read"},
    {"", "_model_states.pt",
     "it is a checkpoint of DeepSpeed; `python zero_to_fp32.py . OUT` in the directory above writes one that is read"},
    {"model_world_size_", ".pt",
     "it is a checkpoint of FSDP as verl saves it; `python -m verl.model_merger merge` writes one that is read"},
    {"manifest.ocdbt", "", "it is a checkpoint of Orbax (JAX), which is not read"},
    {"saved_model.pb", "", "it is a SavedModel of TensorFlow, which is not read"},
};

bool holds_checkpoint(const fs::path& directory) {
  if (!is_directory_at(directory)) return false;
  const std::vector<std::string> names = list_directory(directory);
  return std::ranges::any_of(names, [](std::string_view name) {
    return name == ".metadata" || name == "latest_checkpointed_iteration.txt" || name.starts_with("mp_rank_") ||
           (name.ends_with(".safetensors") && !name.starts_with('.')) || name.starts_with("pytorch_model");
  });
}

}  // namespace

std::string other_file_text(const fs::path& file) {
  const FileKind* kind = kind_of_name(file.filename().string());
  if (kind == nullptr && is_file(file)) kind = kind_of_bytes(file);
  return kind == nullptr ? std::string() : kind_text(*kind);
}

std::string other_directory_text(const fs::path& directory) {
  const std::vector<std::string> names = list_directory(directory);
  const std::string name = directory.string();
  if (names.empty()) return "it is empty";
  for (const DirectoryKind& kind : kDirectoryKinds)
    for (const std::string& entry : names)
      if (entry.starts_with(kind.prefix) && entry.ends_with(kind.suffix)) return std::string(kind.what);
  const auto inner =
      std::ranges::find_if(names, [&](const auto& entry) { return holds_checkpoint(directory / entry); });
  if (inner != names.end()) return fmt::format("its {} holds one: give {}", *inner, (directory / *inner).string());
  for (const std::string& entry : names)
    if (const FileKind* kind = kind_of_name(entry); kind != nullptr && !kind->what.ends_with("no weights"))
      return fmt::format("{} {}", entry, kind_text(*kind));
  if (std::ranges::find(names, "config.json") != names.end())
    return "it has a config.json and no weights; `hf download` of the repository that it is of brings them";
  constexpr std::size_t kShown = 3;
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size())));
  return printable(fmt::format("it has {}{}", fmt::join(first, ", "),
                               names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : ""));
}

}  // namespace glu_ckpt
