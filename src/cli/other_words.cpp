/// Commands and options of other programs, and the words for them here.

#include <fmt/format.h>

#include "cli/error_help.hpp"

namespace glu_ckpt::cli {
namespace {

struct SaidOtherwise {
  /// The commands that it is about, between spaces; empty: all.
  std::string_view commands;
  std::string_view word;
  std::string_view way;
};

/// Words of other programs for what is said otherwise here.
constexpr std::string_view kRanks =
    "Megatron-Core and torchtitan cut the model for their ranks when they load it, so DST has none";
constexpr std::string_view kBits = "bits decide whether two are equal; `glu-ckpt diff` says by how much they differ";
constexpr std::string_view kInspect = "`glu-ckpt inspect` says what a checkpoint is, with --tensors what is in it";
constexpr std::string_view kSource = "SRC is the first argument";
constexpr std::string_view kDestination = "DST is the second argument";
constexpr std::string_view kDtype = "dtypes stay as they are; --dtype changes them";
constexpr std::string_view kVocabulary =
    "DST has the vocabulary of SRC; Megatron pads it when it loads, with a larger --padded-vocab-size";
constexpr std::string_view kHub = "`hf download` and `hf upload` do that; a path may be hf://ORG/NAME";
constexpr std::string_view kPage = "--html FILE names the page";
constexpr std::string_view kDecode = "`glu-ckpt convert SRC DST --decode bf16` makes weights of codes";
constexpr std::string_view kOrder = "`glu-ckpt convert SRC DST --glu ORDER` puts gate and up rows in another order";
constexpr SaidOtherwise kSaidOtherwise[] = {
    {" glu-ckpt ", "compare", "`glu-ckpt verify` says whether two are one model, `glu-ckpt diff` where they differ"},
    {" glu-ckpt ", "download", kHub},
    {" glu-ckpt ", "upload", kHub},
    {" glu-ckpt ", "export", "`glu-ckpt convert SRC DST --to hf` writes what the hub has"},
    {" glu-ckpt ", "hash", "`glu-ckpt digest` makes one fingerprint of a model"},
    {" glu-ckpt ", "import", "`glu-ckpt convert SRC DST --to megatron` writes what a trainer loads"},
    {" glu-ckpt ", "info", kInspect},
    {" glu-ckpt ", "list", kInspect},
    {" glu-ckpt ", "ls", kInspect},
    {" glu-ckpt ", "move", "`glu-ckpt convert SRC DST` writes a model in another layout"},
    {" glu-ckpt ", "copy", "`glu-ckpt convert SRC DST` writes a model in another layout"},
    {" glu-ckpt ", "decode", kDecode},
    {" glu-ckpt ", "dequantize", kDecode},
    {" glu-ckpt ", "encode", "`glu-ckpt convert SRC DST --encode FORMAT` quantizes"},
    {" glu-ckpt ", "pad", "`glu-ckpt convert SRC DST --pad-experts N` pads experts, and --unpad takes that away"},
    {" glu-ckpt ", "interleave", kOrder},
    {" glu-ckpt ", "deinterleave", kOrder},
    {" glu-ckpt ", "swap", kOrder},
    {" glu-ckpt ", "split", "`glu-ckpt convert SRC DST --glu split` makes two tensors of gate and up"},
    {" glu-ckpt ", "merge", "`glu-ckpt convert SRC DST --merge ADAPTER` merges an adapter"},
    {" glu-ckpt ", "quantize", "`glu-ckpt convert SRC DST --encode FORMAT` quantizes"},
    {" glu-ckpt ", "resume", "the same `glu-ckpt convert` with --resume goes on"},
    {" glu-ckpt ", "show", kInspect},
    {" glu-ckpt ", "validate", "`glu-ckpt check` compares a checkpoint with its own record"},
    {" inspect ", "--layers", "--tensors '*.layers.3.*' lists what is in a layer"},
    {" convert plan ", "--output", kDestination},
    {" convert plan ", "--output-dir", kDestination},
    {" convert plan ", "--out", kDestination},
    {" convert plan ", "--dst", kDestination},
    {" convert plan ", "--save", kDestination},
    {" convert plan ", "--save-dir", kDestination},
    {" convert plan ", "-o", kDestination},
    {" convert plan ", "--input", kSource},
    {" convert plan ", "--input-dir", kSource},
    {" convert plan ", "--src", kSource},
    {" convert plan ", "--model", kSource},
    {" convert plan ", "--hf-model", kSource},
    {" convert plan ", "--checkpoint", kSource},
    {" convert plan ", "--load", kSource},
    {" convert plan ", "--load-dir", kSource},
    {" convert plan ", "-i", kSource},
    {" convert plan ", "--num-layers", "--layers 0-3 writes a model of the first four"},
    {" convert plan ", "--num-experts", "--keep-experts 0-31 writes a model of the first 32 of each layer"},
    {" convert plan ", "--bf16", kDtype},
    {" convert plan ", "--fp16", kDtype},
    {" convert plan ", "--fp32", kDtype},
    {" convert plan ", "--torch-dtype", kDtype},
    {" convert plan ", "--precision", kDtype},
    {" convert plan ", "--make-vocab-size-divisible-by", kVocabulary},
    {" convert plan ", "--padded-vocab-size", kVocabulary},
    {" convert plan ", "--pad-vocab", kVocabulary},
    {" convert plan ", "--no-verify", "--verify none writes without a proof"},
    {" convert plan ", "--trust-remote-code", "no code of a checkpoint is ever run"},
    {" convert plan ", "--from", "SRC says what it is; where it does not, --from-naming and --from-glu do"},
    {" convert plan ", "--quantize", "--encode FORMAT quantizes"},
    {" convert plan ", "--quantization", "--encode FORMAT quantizes"},
    {" convert plan ", "--dequantize", "--decode bf16 makes weights of codes"},
    {" convert plan ", "--dequant", "--decode bf16 makes weights of codes"},
    {" convert plan ", "--bits", "--encode FORMAT quantizes"},
    {" convert plan ", "--tp", kRanks},
    {" convert plan ", "--pp", kRanks},
    {" convert plan ", "--tp-size", kRanks},
    {" convert plan ", "--pp-size", kRanks},
    {" convert plan ", "--ep-size", kRanks},
    {" convert plan ", "--ep", kRanks},
    {" convert plan ", "--tensor-model-parallel-size", kRanks},
    {" convert plan ", "--pipeline-model-parallel-size", kRanks},
    {" convert plan ", "--expert-model-parallel-size", kRanks},
    {" convert plan ", "--target-tensor-parallel-size", kRanks},
    {" convert plan ", "--target-pipeline-parallel-size", kRanks},
    {" convert plan ", "--target-expert-parallel-size", kRanks},
    {" verify diff ", "B", "`glu-ckpt check PATH` compares one checkpoint with its own record and checksums"},
    {" verify diff ", "--tolerance", kBits},
    {" verify diff ", "--atol", kBits},
    {" verify diff ", "--rtol", kBits},
    {" verify diff ", "--threshold", kBits},
    {" report ", "--output", kPage},
    {" report ", "--out", kPage},
    {" report ", "-o", kPage},
    {" digest check ", "--sha256",
     "`glu-ckpt convert --manifest sha256` writes the SHA-256 of all files, which `check` compares"},
    {"", "--threads", "-j says how many"},
    {"", "--workers", "-j says how many"},
    {"", "--num-workers", "-j says how many"},
};

bool is_about(const SaidOtherwise& row, std::string_view command) {
  const std::string words = fmt::format(" {} ", command.substr(command.rfind(' ') + 1));
  return row.commands.empty() || row.commands.find(words) != row.commands.npos;
}

}  // namespace

std::string said_otherwise(std::string_view command, std::string_view word) {
  for (const SaidOtherwise& row : kSaidOtherwise)
    if (row.word == word && is_about(row, command)) return fmt::format("; {}", row.way);
  return {};
}

std::vector<std::string> words_said_otherwise(std::string_view command) {
  std::vector<std::string> words;
  for (const SaidOtherwise& row : kSaidOtherwise)
    if (is_about(row, command)) words.emplace_back(row.word);
  return words;
}

}  // namespace glu_ckpt::cli
