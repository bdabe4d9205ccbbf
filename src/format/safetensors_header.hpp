#pragma once
/// The header of a safetensors file, as bytes; read_header() alone takes a file, which is open.
///
///   0    u64 N, little-endian: length of the JSON, padding included
///   8    N bytes of UTF-8 JSON: {"__metadata__": {key: string}, name: {"dtype", "shape",
///        "data_offsets": [begin, end]}}, padded with spaces
///   8+N  the data section, which the tensors tile exactly
///
/// Accepts what the reference reader (safetensors/src/tensor.rs) accepts, except duplicate names, of
/// which that one silently keeps the last.

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

class File;

/// The reference reader's limit on N.
inline constexpr i64 kMaxHeaderBytes = 100'000'000;
inline constexpr i64 kHeaderPrefixBytes = 8;

struct ParsedHeader {
  /// Sorted by offset, which counts from the start of the data section; `file` is 0.
  std::vector<TensorRef> tensors;
  std::map<std::string, std::string> metadata;
};

/// N, from the first 8 bytes (`prefix` is shorter for a shorter file) of a file of `file_bytes`.
/// Throws HeaderTooSmall, HeaderTooLarge, HeaderLength.
i64 check_header_length(std::span<const std::byte> prefix, i64 file_bytes, const std::string& file);

/// Reads and checks the JSON of a file whose data section is `data_bytes` long. `file` is for messages.
ParsedHeader parse_header(std::string_view json, i64 data_bytes, const std::string& file);

/// The data phase of a data section that begins at `offset`, or none where that is no multiple of 8: readers map
/// tensors from where they lie, so alignment goes before sharing.
std::optional<i64> shareable_phase(i64 offset);

/// N and the JSON of one shard whose tensors are sorted by offset, padded so that N is a multiple of 8 and, with a
/// `data_phase` (a multiple of 8 below kDataPhaseBytes), so that the data section begins at it modulo kDataPhaseBytes.
/// Compact, fields in the reference writer's order, metadata keys sorted. Throws HeaderTooLarge.
std::string print_header(std::span<const OutputTensor> tensors, const std::map<std::string, std::string>& metadata,
                         std::optional<i64> data_phase = std::nullopt);

/// Returns the checked header of a file; tensor offsets are absolute positions in it.
ParsedHeader read_header(const File& file);

}  // namespace glu_ckpt
