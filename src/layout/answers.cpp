/// The values of the layout options: one place that parses and prints each.

#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "glu_ckpt/layout.hpp"
#include "layout/tensor_kinds.hpp"

namespace glu_ckpt {
namespace {

/// TransformerEngine's fused grouped MLP reads no other size.
constexpr i64 kDefaultBlockRows = 32;

}  // namespace

std::string to_string(const Glu& glu) {
  switch (glu.kind) {
    case Glu::Kind::Split: return "split";
    case Glu::Kind::Contiguous: return "contiguous";
    case Glu::Kind::Interleaved: return fmt::format("interleaved:{}", glu.block_rows);
    case Glu::Kind::Unknown: return "unknown";
    case Glu::Kind::None: return "none";
  }
  return {};
}

std::string_view to_string(Experts experts) { return experts == Experts::Indexed ? "indexed" : "grouped"; }
std::string_view to_string(ExpertSet set) { return set == ExpertSet::Routed ? "routed" : "shared"; }

std::string_view to_string(Role role) {
  switch (role) {
    case Role::Gate: return "gate";
    case Role::Up: return "up";
    case Role::Down: return "down";
    case Role::GateUp: return "gate_up";
  }
  return {};
}

std::string_view to_string(TensorKind kind) { return words_of(kind).text; }

Glu parse_glu(std::string_view text) {
  if (text == "split") return {Glu::Kind::Split, 0};
  if (text == "contiguous") return {Glu::Kind::Contiguous, 0};
  if (text == "interleaved") return {Glu::Kind::Interleaved, kDefaultBlockRows};
  constexpr std::string_view kPrefix = "interleaved:";
  if (text.starts_with(kPrefix)) {
    const auto block_rows = parse_number<i64>(text.substr(kPrefix.size()));
    if (block_rows && *block_rows >= 1) return {Glu::Kind::Interleaved, *block_rows};
  }
  fail(ErrorCode::Usage, {}, "'{}' is not a glu arrangement: use split, contiguous or interleaved:K with K >= 1", text);
}

Experts parse_experts(std::string_view text) {
  if (text == "indexed") return Experts::Indexed;
  if (text == "grouped") return Experts::Grouped;
  fail(ErrorCode::Usage, {}, "'{}' is not an expert grouping: use indexed or grouped", text);
}

std::string layer_label(const ExpertBlock& block) {
  const std::string number =
      block.stack == "decoder" ? fmt::format("{}", block.layer) : fmt::format("{}.{}", block.stack, block.layer);
  return block.scope + number;
}

}  // namespace glu_ckpt
