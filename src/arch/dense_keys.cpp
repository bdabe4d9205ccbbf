#include "arch/dense_keys.hpp"

#include "core/parse_number.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxMtpLayers = 64;

}  // namespace

DenseKeys::DenseKeys(const DenseNaming& naming, std::string root, const Architecture& architecture)
    : naming_(naming), root_(std::move(root)), architecture_(architecture) {
  for_each_row(naming, [&](const DenseRow& row) {
    Entries& entries = row.place == Place::Model ? model_ : row.place == Place::Layer ? layer_ : mtp_;
    const auto add = [&](TensorKind kind) {
      std::string key = print_tail(row, kind);
      if (row.place == Place::Model) key = with_root(root_, key);
      entries.emplace(std::move(key), Entry{&row, kind});
    };
    add(TensorKind::Weight);
    if (row.has_kinds()) add(TensorKind::Bias);
  });
  add_prefix(naming.layers, ".", "decoder", Place::Layer);
  if (naming.mtp_layers.empty()) return;
  add_prefix(naming.mtp_layers, naming.mtp_inner, "mtp", Place::Layer);
  if (!naming.mtp_inner_too.empty()) add_prefix(naming.mtp_layers, naming.mtp_inner_too, "mtp", Place::Layer);
  add_outer(naming.mtp_outer);
}

void DenseKeys::add_prefix(std::string_view before, std::string_view after, std::string_view stack, Place place) {
  prefixes_.push_back({with_root(root_, before), std::string(after), stack, place});
}

/// Without a number there is one such layer.
void DenseKeys::add_outer(std::string_view outer) {
  const std::size_t at = outer.find('#');
  if (at == outer.npos)
    add_prefix(outer, "", "mtp", Place::Mtp);
  else
    add_prefix(outer.substr(0, at), outer.substr(at + 1), "mtp", Place::Mtp);
}

std::optional<DenseKey> DenseKeys::parse(std::string_view name) const {
  if (const auto found = find(model_, name, {}, 0, false)) return found;
  for (const Prefix& prefix : prefixes_)
    if (name.starts_with(prefix.before))
      if (const auto found = parse_layer(prefix, name.substr(prefix.before.size()))) return found;
  return std::nullopt;
}

std::optional<DenseKey> DenseKeys::parse_layer(const Prefix& prefix, std::string_view name) const {
  if (prefix.place == Place::Mtp && prefix.after.empty()) return find(mtp_, name, "mtp", 0, false);
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  if (digits == 0) {
    const bool stacked = naming_.stacks_layers && prefix.stack == "decoder";
    return stacked ? find(layer_, name, prefix.stack, 0, true) : std::nullopt;
  }
  const auto number = parse_index(name.substr(0, digits));
  const std::string_view behind = name.substr(digits);
  if (!number || !behind.starts_with(prefix.after)) return std::nullopt;
  const std::string_view tail = behind.substr(prefix.after.size());
  if (naming_.mtp_nests && prefix.stack == "mtp") return parse_nested(prefix, *number, tail);
  const i64 layers = architecture_.layers;
  if (prefix.stack == "decoder" && *number < layers) return find(layer_, tail, "decoder", *number, false);
  const bool follows = prefix.stack == "decoder" && naming_.mtp_layers.empty() && !mtp_.empty();
  if (prefix.stack == "decoder" && !follows) return std::nullopt;
  const i64 layer = follows ? *number - layers : *number;
  if (layer < 0 || layer >= kMaxMtpLayers) return std::nullopt;
  if (follows || prefix.place == Place::Mtp)
    if (const auto found = find(mtp_, tail, "mtp", layer, false)) return found;
  if (prefix.place == Place::Mtp) return std::nullopt;
  return find(layer_, tail, "mtp", layer, false);
}

std::optional<DenseKey> DenseKeys::parse_nested(const Prefix& prefix, i64 step, std::string_view tail) const {
  const i64 depth = architecture_.mtp_depth();
  if (step < 0 || step >= kMaxMtpLayers) return std::nullopt;
  if (prefix.place == Place::Mtp) {
    const auto of_first = find(mtp_, tail, "mtp", step * depth, false);
    return of_first ? of_first : find(mtp_, tail, "mtp", step * depth + depth - 1, false);
  }
  const std::size_t digits = std::min(tail.find_first_not_of("0123456789"), tail.size());
  const auto number = parse_index(tail.substr(0, digits));
  if (!number || *number < 0 || *number >= depth || !tail.substr(digits).starts_with('.')) return std::nullopt;
  return find(layer_, tail.substr(digits + 1), "mtp", step * depth + *number, false);
}

std::optional<DenseKey> DenseKeys::find(const Entries& entries, std::string_view tail, std::string_view stack,
                                        i64 layer, bool stacked) const {
  const auto [first, last] = entries.equal_range(tail);
  for (auto at = first; at != last; ++at) {
    const auto& [row, kind] = at->second;
    // A stack of layers is of one kind, since layers of several could not be stacked.
    if (!stack.empty() && !applies(*row, architecture_.kind_of(stack, layer), architecture_)) continue;
    return DenseKey{row, kind, stack, layer, stacked};
  }
  return std::nullopt;
}

}  // namespace glu_ckpt
