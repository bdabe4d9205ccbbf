#pragma once
/// A checkpoint's tensors under the names that they have in the model itself: without the text that a wrapper put in
/// front of all keys, and as the hub spells what transformers spells otherwise in memory. All of recognition sees
/// these.

#include <optional>
#include <string>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

struct ModelView {
  /// Recognition::wrapper.
  std::string wrapper;
  /// Some names outside of the experts are those that transformers has in memory.
  bool in_memory = false;
  /// None where all tensors have their own names.
  std::optional<Inventory> renamed;

  const Inventory& of(const Inventory& inventory) const { return renamed ? *renamed : inventory; }
};

/// Returns whether some key may have words that take_off_wrapper_words() takes off.
bool has_wrapper_words(const Inventory& inventory);

/// Takes the words off that torch.compile, FSDP, activation checkpointing and DDP put between the components of a key,
/// as in "model.layers.0._orig_mod.mlp.gate.weight": all of them but those that all keys of the model begin with, which
/// are ModelView::wrapper. "module" may be a model's own word in what all keys have in common. Returns the first key
/// that had some; empty where none had. Throws RedundantKeys where two keys become one.
std::string take_off_wrapper_words(Inventory& inventory, const ModelHints& hints);

/// A text in front of all keys is a wrapper's if no program's keys begin with it and the model's own do without it.
ModelView view_model(const Inventory& inventory, const ModelHints& hints);

/// The place of the wrapper's text in a tensor's name: at its begin, or behind what an optimizer puts there. npos where
/// it is not there.
std::size_t wrapper_begin(std::string_view name, std::string_view wrapper);

}  // namespace glu_ckpt
