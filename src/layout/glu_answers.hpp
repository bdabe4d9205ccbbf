#pragma once
/// Collects who says in which order FC1 holds gate and up: the user, the record, the arguments that a trainer saved.

#include <optional>
#include <string>
#include <string_view>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// An answer about the order of gate and up, and who gave it.
struct GluAnswer {
  std::optional<Glu> asked;
  /// The order in the record, or else in the arguments that a trainer saved.
  std::optional<Glu> recorded;
  /// The option without its prefix, and the record's entry.
  std::string_view option;
  std::string key;

  const std::optional<Glu>& best() const { return asked ? asked : recorded; }
};

/// Borrows what it is made of.
class GluAnswers {
 public:
  /// Throws RecordInvalid where the record's entries are no orders.
  GluAnswers(const Record& record, const SourceAnswers& answers);

  /// Returns the answer about routed experts, or about a dense model. `trained` is the order that the trainer's
  /// arguments mean, or empty.
  GluAnswer about_weights(const std::string& trained) const;
  /// Returns the answer about shared experts.
  GluAnswer about_shared(const std::string& trained) const;
  /// Returns none where neither the user nor the record speaks of the optimizer's states by themselves.
  std::optional<GluAnswer> about_states() const;

  /// Throws GluConflict where the user and the record, or the trainer's arguments, disagree.
  void check_agreement(const GluAnswer& answer) const;
  [[noreturn]] void conflict(const GluAnswer& answer, const std::string& other) const;
  /// "option", "record" or "arguments": who gave the best answer.
  std::string_view source_of(const GluAnswer& answer) const;
  /// "--from-glu", "the record" or "the trainer's saved argument": who gave it, in a message.
  std::string name_of(const GluAnswer& answer) const;

 private:
  /// The record knows what was converted since the trainer saved its arguments.
  std::optional<Glu> settled(const std::string& key, const std::string& trained) const;
  std::optional<Glu> recorded(const std::string& key) const;

  const Record& record_;
  const SourceAnswers& answers_;
};

}  // namespace glu_ckpt
