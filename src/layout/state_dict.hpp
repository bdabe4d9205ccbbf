#pragma once
/// Stacking, slicing and re-keying of state dicts: what the rules for grouped keys have in common.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fail.hpp"
#include "glu_ckpt/megatron.hpp"

namespace glu_ckpt {

/// An error about this key.
inline Where at(std::string_view key) { return {{}, std::string(key)}; }

/// Throws unless 1 <= E <= 65536: the number may come from a file, and every expert gets a key.
void check_num_experts(i64 num_experts);
/// Throws DuplicateKey.
void check_unique_keys(const StateDict& dict);

/// Bytes of all pieces. Throws where a piece is negative, their sum overflows, or a Plain tensor's
/// bytes are not those of its dtype and shape.
i64 stored_bytes(const StateTensor& tensor, std::string_view key);
i64 element_count(const StateTensor& tensor, std::string_view key);

/// `count` equal parts along axis 0, each of `shape`; bytes are row-major, so parts are runs.
std::vector<StateTensor> cut(const StateTensor& tensor, std::string_view key, i64 count, const std::vector<i64>& shape);
/// Members of a GroupedTensor: the cached ones, or cut from its storage.
std::vector<StateTensor> grouped_members(const StateTensor& tensor, std::string_view key);
/// The entries at these positions on a new axis 0. Quantized ones come out Dequantized, as from torch.stack.
StateTensor stack(const StateDict& dict, const std::vector<std::size_t>& members);

/// `key` as `base` followed by an index below `num_experts`: decimal, not padded.
std::optional<i64> index_after(std::string_view key, std::string_view base, i64 num_experts);

/// Removes the entries at `removed`, then assigns `added` in order, as a Python dict would: a key
/// that is still there keeps its place, a new one goes to the end.
StateDict rekey(StateDict dict, const std::vector<std::size_t>& removed, std::vector<StateEntry> added);

}  // namespace glu_ckpt
