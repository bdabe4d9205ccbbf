#pragma once
/// A bound on the memory that a parser takes. Small values cost many times the bytes that spell them, so a small file
/// could ask for all memory.

#include <optional>
#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Takes --max-memory, which is 1 GiB where nobody says otherwise. It is one for the process, as memory is, and is set
/// before anything is opened.
void set_parser_memory(i64 bytes);

/// Returns what the values of `read_bytes` of a file may take: 1/64 of --max-memory or 1 MiB, and three bytes for each
/// that was read, but not more than --max-memory. Of real files a tensor of a state dict takes 2.2 bytes for each of
/// its 129, a tensor of a safetensors header 2.3 for each of its 115; a file of nothing but empty lists takes 12 to 32.
i64 parser_allowance(i64 read_bytes);

/// Says by how much `held_bytes` are too many for the values of the first `read_bytes`, and what to do; nothing where
/// they are not. The sentence goes on after the name of what is read.
std::optional<std::string> over_allowance(i64 read_bytes, i64 held_bytes);

}  // namespace glu_ckpt
