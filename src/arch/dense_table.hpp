#pragma once
/// Reading the rows that spell the tensors of a model outside of its experts (src/families): the layers that have a
/// row, and its key.

#include <string>
#include <string_view>
#include <vector>

#include "families/architecture.hpp"

namespace glu_ckpt {

/// Returns whether a layer of that kind has the row's tensor.
bool applies(const DenseRow& row, LayerKind kind, const Architecture& architecture);

/// Roots of keys: of Hugging Face's language models and of one inside a multimodal model; of Megatron's.
inline constexpr auto kHfRoots =
    std::to_array<std::string_view>({"model.", "model.language_model.", "language_model.model.", ""});
/// Returns the usual roots, and the family's own.
std::vector<std::string_view> roots_of(const Family& family);
inline constexpr auto kMegatronRoots = std::to_array<std::string_view>({"", "language_model."});

/// Returns whether routers of the family may have a bias of experts.
bool has_router_bias(const Family& family);
/// Returns whether experts of such a model are spelled by that row of the table of layouts.
bool spells_experts_of(const Architecture& architecture, std::string_view naming);
/// The key of a row's tensor. `root` is the text in front of all keys, such as "model.".
std::string print_key(const DenseNaming& naming, const DenseRow& row, std::string_view root, std::string_view stack,
                      i64 layer, TensorKind kind, const Architecture& architecture);

/// The row's key behind the prefix of its place, and a key behind its root: from '/' on, beside it.
std::string print_tail(const DenseRow& row, TensorKind kind);
std::string with_root(std::string_view root, std::string_view key);

/// The text in front of the keys of a layer, experts' included: "model.layers.3.".
std::string print_layer_prefix(const DenseNaming& naming, std::string_view root, std::string_view stack, i64 layer,
                               const Architecture& architecture);

/// Calls use(row) with each of the naming's rows.
template <typename Use>
void for_each_row(const DenseNaming& naming, const Use& use) {
  for (const std::span<const DenseRow> rows : naming.rows)
    for (const DenseRow& row : rows) use(row);
}

}  // namespace glu_ckpt
