#pragma once
/// Matching keys against the templates of the layout table, and printing keys from them.

#include <string>
#include <string_view>
#include <vector>

#include "layout/layout_table.hpp"

namespace glu_ckpt {

/// A key with its layer and expert numbers taken out. A number is a run of decimal digits that is a
/// whole component, or that follows `weight` or `bias` at a component's start; digits elsewhere
/// (`linear_fc1`, `w13`) are part of a name, and so are padded numbers.
struct KeySkeleton {
  /// '#' stands for each number.
  std::string text;
  std::vector<i64> numbers;
  /// Digits of each number as written.
  std::vector<int> widths;
};
KeySkeleton skeletonize(std::string_view key);
/// Does the same with a skeleton whose memory is used again.
void skeletonize(std::string_view key, KeySkeleton& skeleton);

/// The key that it was made of.
std::string print_key(const KeySkeleton& skeleton);

/// One template of one row, for one stack of layers.
struct KeyPattern {
  const Naming* naming = nullptr;
  const StackPrefix* stack = nullptr;
  ExpertSet set = ExpertSet::Routed;
  Experts experts = Experts::Indexed;
  Role role = Role::Gate;
  TensorKind kind = TensorKind::Weight;
  std::string skeleton;
  /// Characters of `skeleton` from the expert part on.
  std::size_t part_size = 0;
  /// Characters of `skeleton` behind the expert's number, if it has one.
  std::size_t tail_size = 0;
  bool has_expert = false;
  /// No layer number: the tensor has a leading axis of layers instead.
  bool stacked_layers = false;
  /// ExpertBlock::scale_word.
  std::string_view scale_word;
};

/// Returns all patterns that explain keys of this skeleton, in table order.
std::vector<const KeyPattern*> match_patterns(const KeySkeleton& skeleton);

/// The expert part of a key that a pattern explains: where it begins, and the expert that it names. Nothing else
/// differs between the keys of one part of one layer.
struct ExpertPart {
  /// Characters in front of the expert part.
  std::size_t begin = 0;
  i64 expert = 0;
};
ExpertPart find_expert_part(std::string_view key, const KeyPattern& pattern);

/// The facts that a key tells once a pattern explains it.
struct KeyParts {
  /// The text in front of the stack prefix.
  std::string_view scope;
  /// "decoder", or with the outer layer's number in it where the stack is nested.
  std::string stack;
  i64 layer = 0;
};
KeyParts parse_key(std::string_view key, const KeySkeleton& skeleton, const KeyPattern& pattern);

/// The template with its kind and expert filled in. `scale_word` is that of scales of blocks, where it is not
/// weight_scale_inv.
std::string print_part(std::string_view part_template, TensorKind kind, std::string_view expert,
                       std::string_view scale_word = {});

}  // namespace glu_ckpt
