#pragma once
/// The object of config.json that says how weights are quantized: where it is, and what it says. For those who read it,
/// read the files that say the same, and write it.

#include <optional>
#include <string>
#include <string_view>

#include "core/json.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {

constexpr std::size_t kMaxQuantConfigDepth = 64;

/// The formats' fields for the modules that they leave as they are.
constexpr std::string_view kSkippedFields[] = {"modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"};

std::string text_of(const JsonValue& object, std::string_view name);

/// Returns what `object` says. `where` stands before the name of a field in messages.
QuantConfig read_quantization_object(const JsonValue& object, const std::string& where,
                                     std::string_view default_method = {});

/// Says which field of `object` cannot be read. An earlier fault stays.
void check_quantization_types(const JsonValue& object, const std::string& where, std::string& fault);

std::vector<std::string> skipped_modules(const JsonValue& object);

/// Sets the rows and columns of blocks, or the fault.
void read_block(const std::optional<JsonValue>& block, QuantConfig& config);

/// Returns the quantization object of the model, or else of its language model.
std::optional<JsonValue> find_quantization_object(const JsonValue& root);

/// A member of a JSON object in a text.
struct Member {
  std::size_t key = 0;
  bool is_first = true;
};

/// The members that count: transformers also writes `"quantization_config": null`.
enum class Holds { Anything, AnObject };

/// The last member of that name.
std::optional<Member> find_member(const JsonValue& fields, std::string_view name, Holds holds);

/// The first that an object has, or that objects in it have: its language model's before others.
std::optional<Member> find_quantization_member(const JsonValue& fields, Holds holds);
std::optional<Member> find_quantization_member(std::string_view text, Holds holds);

}  // namespace glu_ckpt
