#include "arch/dense_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "layout/layout_table.hpp"

namespace glu_ckpt {
namespace {

/// The text in front of what stands beside the root: of "language_model.model.", "language_model.".
std::string_view beside(std::string_view root) {
  constexpr std::string_view kModel = "model.";
  if (root == "model.language_model.") return {};
  return root.ends_with(kModel) ? root.substr(0, root.size() - kModel.size()) : std::string_view();
}

std::string numbered(std::string_view text, i64 number) {
  const std::size_t at = text.find('#');
  if (at == text.npos) return std::string(text);
  return fmt::format("{}{}{}", text.substr(0, at), number, text.substr(at + 1));
}

int bit_of(Attention attention) {
  switch (attention) {
    case Attention::Grouped: return kGrouped;
    case Attention::Latent: return kLatent;
    case Attention::Delta: return kDelta;
    case Attention::Mamba: return kMamba;
    case Attention::None: return kAlways;
  }
  return kAlways;
}

int bit_of(Mlp mlp) { return mlp == Mlp::Dense ? kDense : mlp == Mlp::Experts ? kExperts : kAlways; }

}  // namespace

std::vector<std::string_view> roots_of(const Family& family) {
  std::vector<std::string_view> roots(kHfRoots.begin(), kHfRoots.end());
  if (std::ranges::find(roots, family.root) == roots.end()) roots.push_back(family.root);
  return roots;
}

bool applies(const DenseRow& row, LayerKind kind, const Architecture& architecture) {
  const auto fits = [&](int mask, int bit) { return (row.when & mask) == 0 || (row.when & bit) != 0; };
  return fits(kGrouped | kLatent | kDelta | kMamba, bit_of(kind.attention)) &&
         fits(kDense | kExperts, bit_of(kind.mlp)) &&
         fits(kGated | kUngated, architecture.gated_attention ? kGated : kUngated) &&
         fits(kHeadNorms | kWideNorms, architecture.family->wide_qk_norms ? kWideNorms : kHeadNorms) &&
         fits(kSparse | kNotSparse, architecture.family->sparse_attention ? kSparse : kNotSparse) &&
         fits(kExpertLatent, architecture.extent(Dim::ExpertLatent) > 0 ? kExpertLatent : kAlways) &&
         fits(kMtpFirst, kind.mtp_first ? kMtpFirst : kAlways) && fits(kMtpLast, kind.mtp_last ? kMtpLast : kAlways) &&
         fits(kIndexer, kind.indexer ? kIndexer : kAlways) &&
         fits(kQLora | kNoQLora, architecture.extent(Dim::QLora) > 0 ? kQLora : kNoQLora);
}

bool has_router_bias(const Family& family) {
  bool found = false;
  for_each_row(family.naming, [&](const DenseRow& row) { found |= row.roles[0] == DenseRole::CorrectionBias; });
  return found;
}

bool spells_experts_of(const Architecture& architecture, std::string_view naming) {
  const Family& family = *architecture.family;
  const Naming* const row = find_naming(naming);
  if (naming == "hf:" + architecture.model_type) return true;
  if (!family.has_experts()) return false;
  return row == find_naming(family.expert_naming) ||
         (!family.other_expert_naming.empty() && row == find_naming(family.other_expert_naming));
}

std::string print_tail(const DenseRow& row, TensorKind kind) {
  constexpr std::string_view kKind = "{K}";
  std::string key(row.key);
  if (const std::size_t at = key.find(kKind); at != key.npos) key.replace(at, kKind.size(), to_string(kind));
  return key;
}

std::string with_root(std::string_view root, std::string_view key) {
  if (key.starts_with('/')) return std::string(beside(root)) + std::string(key.substr(1));
  return std::string(root) + std::string(key);
}

std::string print_layer_prefix(const DenseNaming& naming, std::string_view root, std::string_view stack, i64 layer,
                               const Architecture& architecture) {
  if (stack != "mtp") return fmt::format("{}{}.", with_root(root, naming.layers), layer);
  if (naming.mtp_layers.empty())
    return fmt::format("{}{}.", with_root(root, naming.layers), layer + architecture.layers);
  if (const i64 depth = architecture.mtp_depth(); naming.mtp_nests)
    return fmt::format("{}{}{}{}.", with_root(root, naming.mtp_layers), layer / depth, naming.mtp_inner, layer % depth);
  return fmt::format("{}{}{}", with_root(root, naming.mtp_layers), layer, naming.mtp_inner);
}

std::string print_key(const DenseNaming& naming, const DenseRow& row, std::string_view root, std::string_view stack,
                      i64 layer, TensorKind kind, const Architecture& architecture) {
  const std::string key = print_tail(row, kind);
  if (row.place == Place::Model) return with_root(root, key);
  if (row.place == Place::Mtp && !naming.mtp_outer.empty())
    return numbered(with_root(root, naming.mtp_outer), naming.mtp_nests ? layer / architecture.mtp_depth() : layer) +
           key;
  return print_layer_prefix(naming, root, stack, layer, architecture) + key;
}

}  // namespace glu_ckpt
