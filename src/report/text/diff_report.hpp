#pragma once
/// The parts of a report about differences that diff and verify share.

#include <string>
#include <vector>

#include "core/json.hpp"
#include "glu_ckpt/diff.hpp"

namespace glu_ckpt::report {

/// "1 (0x3f80)", or the bits alone where the dtype has no numbers.
std::string value_text(const std::string& number, const std::string& bits);

/// A table with a line a layer, and with `every_tensor` a line a tensor behind it.
std::string differences_text(const Diff& diff, bool every_tensor);

/// A number for layers of the main stack, a string such as "mtp.0" for others, null for no layer.
void write_layer(JsonWriter& json, const std::string& label);

void write_warnings(JsonWriter& json, const std::vector<std::string>& warnings);

/// A line about the fields of config.json that differ, or nothing.
std::string configs_text(const std::vector<ConfigDifference>& configs);

/// The fields `config_differences`, `layers` and `tensors`.
void write_differences(JsonWriter& json, const Diff& diff);

/// Returns those of `labels` (Verdict::missing or extra) whose matrix or tensor the other side lacks, without those
/// that only have another dtype or shape there.
std::vector<std::string> without_unlike(const std::vector<std::string>& labels, const Diff& differences);

}  // namespace glu_ckpt::report
