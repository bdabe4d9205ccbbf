#pragma once
/// Headers of safetensors files; the Source over shards is read_safetensors().

#include "format/safetensors_header.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

/// The checked header of an open file; tensor offsets are absolute positions in it.
ParsedHeader read_header(const File& file);

}  // namespace glu_ckpt
