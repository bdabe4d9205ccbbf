#pragma once
/// Reading the rows that spell the tensors of a model outside of its experts (src/families): the layers that have a
/// row, and its key.

#include <string>
#include <string_view>

#include "arch/architecture.hpp"

namespace glu_ckpt {

/// Returns whether a layer of that kind has the row's tensor.
bool applies(const DenseRow& row, LayerKind kind, const Architecture& architecture);

/// Returns whether experts of such a model are spelled by that row of the table of layouts.
bool spells_experts_of(const Architecture& architecture, std::string_view naming);
/// The key of a row's tensor. `root` is the text in front of all keys, such as "model.".
std::string print_key(const DenseNaming& naming, const DenseRow& row, std::string_view root, std::string_view stack,
                      i64 layer, TensorKind kind, i64 num_layers);

/// The row's key behind the prefix of its place, and a key behind its root: from '/' on, beside it.
std::string print_tail(const DenseRow& row, TensorKind kind);
std::string with_root(std::string_view root, std::string_view key);

/// The text in front of the keys of a layer, experts' included: "model.layers.3.".
std::string print_layer_prefix(const DenseNaming& naming, std::string_view root, std::string_view stack, i64 layer,
                               i64 num_layers);

/// Calls use(row) with each of the naming's rows.
template <typename Use>
void for_each_row(const DenseNaming& naming, const Use& use) {
  for (const std::span<const DenseRow> rows : naming.rows)
    for (const DenseRow& row : rows) use(row);
}

}  // namespace glu_ckpt
