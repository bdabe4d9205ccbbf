#pragma once
/// Collects who says in which order FC1 holds gate and up: the user, the record, the arguments of a run
/// of Megatron-LM.

#include <optional>
#include <string>
#include <string_view>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// The order that arguments of Megatron-LM ask for, spelled as --from-glu takes it; empty where they say nothing.
struct ArgumentOrders {
  /// Those that a trainer saved in the checkpoint.
  std::string trained;
  /// Those of the megatron_args.txt beside it.
  std::string listed;
};

/// An answer about the order of gate and up, and who gave it.
struct GluAnswer {
  std::optional<Glu> asked;
  /// The order in the record, or else in the arguments that a trainer saved, or else in megatron_args.txt.
  std::optional<Glu> recorded;
  /// Which of these that is: "record", "arguments" or "megatron_args.txt".
  std::string_view by;
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

  /// Returns the answer about routed experts, or about a dense model. Throws GluConflict where arguments count and
  /// disagree.
  GluAnswer about_weights(const ArgumentOrders& said) const;
  /// Returns the answer about shared experts.
  GluAnswer about_shared(const ArgumentOrders& said) const;
  /// Returns none where neither the user nor the record speaks of the optimizer's states by themselves.
  std::optional<GluAnswer> about_states() const;

  /// Throws GluConflict where the user and whoever else answered disagree.
  void check_agreement(const GluAnswer& answer) const;
  [[noreturn]] void conflict(const GluAnswer& answer, const std::string& other, std::string_view way_on = {}) const;
  /// Who gave the best answer: "option", or GluAnswer::by.
  static std::string_view source_of(const GluAnswer& answer) { return answer.asked ? "option" : answer.by; }
  /// Who gave it, in a message: "--from-glu", "the record", "the trainer's saved argument", "megatron_args.txt".
  std::string name_of(const GluAnswer& answer) const;

 private:
  GluAnswer settled(const std::optional<Glu>& asked, std::string_view option, const std::string& key,
                    const ArgumentOrders& said) const;
  std::optional<Glu> recorded(const std::string& key) const;

  const Record& record_;
  const SourceAnswers& answers_;
};

}  // namespace glu_ckpt
