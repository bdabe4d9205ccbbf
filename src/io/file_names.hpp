#pragma once
/// Names and endings of files that several rooms go by.

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/parse_number.hpp"
#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
inline constexpr std::array<std::string_view, 3> kTorchSuffixes = {".bin", ".pt", ".pth"};
/// A file of a distributed checkpoint's tensors.
inline constexpr std::string_view kDistcpSuffix = ".distcp";
/// An output that is not complete.
inline constexpr std::string_view kPartialSuffix = ".partial";
/// Megatron's: the directory beside it that is the newest checkpoint.
inline constexpr std::string_view kTrackerFile = "latest_checkpointed_iteration.txt";

inline std::filesystem::path partial_of(std::filesystem::path path) { return path += kPartialSuffix; }

/// The format of a file of that name alone; none for what ends otherwise, such as a directory.
inline std::optional<Format> format_of_name(const std::filesystem::path& path) {
  const std::string suffix = path.extension().string();
  if (suffix == kSafetensorsSuffix) return Format::Safetensors;
  if (std::ranges::find(kTorchSuffixes, suffix) != kTorchSuffixes.end()) return Format::Torch;
  return std::nullopt;
}

/// The N of model-00001-of-0000N.safetensors, or 0.
inline std::size_t shards_promised(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t at = name.rfind(kOf);
  if (at == std::string_view::npos) return 0;
  const std::string_view digits = name.substr(at + kOf.size(), name.rfind('.') - at - kOf.size());
  return parse_number<std::size_t>(digits).value_or(0);
}

}  // namespace glu_ckpt
