#include "report/html/byte_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/readable.hpp"
#include "report/html/html_text.hpp"

namespace glu_ckpt {
namespace {

ByteCounts largest_first(const std::map<std::string, i64>& counts) {
  ByteCounts sorted;
  for (const auto& [name, bytes] : counts)
    if (bytes != 0) sorted.emplace_back(name, bytes);
  std::ranges::stable_sort(sorted, [](const auto& x, const auto& y) { return x.second > y.second; });
  return sorted;
}

/// Roles begin with one of these words: "attention/q".
std::string dense_kind(DenseRole role) {
  static const std::map<std::string_view, std::string_view> kWords = {
      {"delta", "GatedDeltaNet"}, {"mlp", "dense MLP"}, {"mtp", "MTP projection"},
      {"norm", "norms"},          {"router", "router"}, {"shared_expert", "shared experts"},
  };
  const std::string_view name = to_string(role), word = name.substr(0, name.find('/'));
  const auto found = kWords.find(word);
  return std::string(found == kWords.end() ? word : found->second);
}

i64 total_of(const ByteCounts& counts) {
  i64 total = 0;
  for (const auto& [name, bytes] : counts) total += bytes;
  return total;
}

std::string byte_cell(i64 bytes, i64 total) {
  const double percent = total > 0 ? 100.0 * static_cast<double>(bytes) / static_cast<double>(total) : 0.0;
  return fmt::format("<span class=\"bar\" style=\"--percent:{:.2f}\"></span>{} ({:.1f}%)", percent, size_text(bytes),
                     percent);
}

i64 count_in(const ByteCounts& counts, const std::string& name) {
  const auto found = std::ranges::find(counts, name, [](const auto& one) { return one.first; });
  return found == counts.end() ? 0 : found->second;
}

}  // namespace

ByteCounts bytes_by_dtype(const Inspection& inspection) {
  std::map<std::string, i64> counts;
  for (const TensorRef& tensor : inspection.source->inventory().tensors)
    counts[std::string(dtype_name(tensor.dtype))] += tensor.bytes;
  return largest_first(counts);
}

ByteCounts bytes_by_kind(const Inspection& inspection) {
  std::map<std::string, i64> counts;
  i64 rest = 0;
  for (const TensorRef& tensor : inspection.source->inventory().tensors) {
    if (is_optimizer_tensor(tensor.name))
      counts["optimizer state"] += tensor.bytes;
    else
      rest += tensor.bytes;
  }
  const auto add = [&](const std::string& kind, const Matrix& matrix) {
    const i64 bytes = matrix.rows * matrix.cols * matrix.element_bytes;
    counts[kind] += bytes;
    rest -= bytes;
  };
  if (inspection.recognition) {
    for (const ExpertBlock& block : inspection.recognition->blocks)
      for (const Matrix& matrix : block.matrices)
        if (!block.is_optimizer_state())
          add(block.set == ExpertSet::Routed ? "routed experts" : "shared experts", matrix);
    for (const DenseMatrix& dense : inspection.recognition->dense) add(dense_kind(dense.role), dense.matrix);
  }
  counts["other tensors"] += rest;
  return largest_first(counts);
}

std::string byte_table(const std::string& caption, const std::string& what, const ByteCounts& a, const ByteCounts* b) {
  std::vector<std::string> headings = {what, b != nullptr ? "A" : "bytes"};
  if (b != nullptr) headings.emplace_back("B");
  std::vector<std::string> names;
  for (const ByteCounts* counts : {&a, b})
    if (counts != nullptr)
      for (const auto& [name, bytes] : *counts)
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  std::string rows;
  for (const std::string& name : names) {
    std::vector<std::string> cells = {byte_cell(count_in(a, name), total_of(a))};
    if (b != nullptr) cells.push_back(byte_cell(count_in(*b, name), total_of(*b)));
    rows += table_row(html(name), cells);
  }
  return table(caption, headings, rows);
}

}  // namespace glu_ckpt
