#pragma once
/// glu_ckpt.extras: what a checkpoint of another format held besides tensors and files. A zip of stored
/// records, so that any unzip can look into it: `extras.json`, `tree/N` (pickles), `object/N` (torch zips).

#include <string>
#include <vector>

#include "core/fail.hpp"
#include "format/torch_zip.hpp"
#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

inline constexpr std::string_view kExtrasFileName = "glu_ckpt.extras";
/// A safetensors file that stands alone has the same as base64 among its `__metadata__`.
inline constexpr std::string_view kExtrasEntry = "glu_ckpt.extras";

/// Reads the content of an extras zip. `read` reads from the zip's start and lives on in the objects; `part` is the
/// zip. Throws ExtrasInvalid and the errors of the zip.
Structure read_extras(ReadAt read, i64 bytes, InputPart part);
/// Opens the extras in a file of its own.
Structure open_extras(const std::filesystem::path& path);

/// Returns whether a checkpoint of `format` holds a part of the structure in extras only.
bool needs_extras(const Structure& structure, Format format);

/// The trees with the outputs in place of the tensors that they come from.
std::vector<TorchTree> renamed_trees(const std::vector<TorchTree>& trees, const std::vector<OutputTensor>& outputs);

/// The bytes of an extras zip.
std::string print_extras(const Structure& structure, const std::vector<OutputTensor>& outputs);

/// The tree that each output belongs to, by the longest prefix of its name; trees.size() where it belongs to none.
std::vector<std::size_t> tree_of_outputs(const std::vector<TorchTree>& trees, const std::vector<OutputTensor>& outputs);

/// The path in a nested state dict of each output whose source has one.
std::map<std::string, KeyPath> renamed_paths(const std::map<std::string, KeyPath>& paths,
                                             const std::vector<OutputTensor>& outputs);

}  // namespace glu_ckpt
