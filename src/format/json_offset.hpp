#pragma once
/// Positions in JSON text. simdjson's document keeps none, so these walk the text once more: for errors alone.

#include <initializer_list>
#include <string_view>

#include "core/json.hpp"

namespace glu_ckpt {

/// Of the first byte for which a JsonDocument of `text` has `fault`; text.size() where the text ends too early.
i64 json_fault_offset(std::string_view text, JsonFault fault, std::size_t max_depth);

/// Of a value, or of its key where it is in an object; `steps` are the numbers of the members or items on the way
/// to it from the root. `text` is sound JSON; text.size() where it has no such value.
i64 json_offset(std::string_view text, std::initializer_list<std::size_t> steps);

}  // namespace glu_ckpt
