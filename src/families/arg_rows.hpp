#pragma once
/// Rows between the fields of a config.json and the arguments of Megatron-LM, both ways.
///
/// Example: {"hidden_size", "hidden_size", write_extent<Dim::Hidden>, as_integer} writes `--hidden-size 2048` for a
/// model whose config.json says so, and `"hidden_size": 2048` for one whose trainer saved that argument. A family lists
/// its rows; generic code goes through them.

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "families/architecture.hpp"
#include "families/config_fields.hpp"
#include "families/saved_args.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

struct MegatronArgs {
  /// One argument a line, with its value; words hold no spaces, so `$(cat FILE)` splits them right.
  std::string text;
  /// A sentence about each thing that no argument can say, so that the model would load and compute something else.
  std::vector<std::string> warnings;
  /// All layers share their tensors.
  bool stacked = false;
};

/// What the arguments say of the form in which the tensors are written: the orders of gate and up.
struct WrittenForm {
  std::optional<Glu> routed;
  std::optional<Glu> shared;
  /// All layers share their tensors.
  bool stacked = false;
};

/// Numbers as argparse's float and JSON take them, with a point or an exponent.
std::string float_text(double value);

/// The arguments under way, and what rows read to write them.
class ArgsWriter {
 public:
  /// `config_text` is config.json's. Requires Recognition::architecture. Keeps references.
  ArgsWriter(const std::string& config_text, const Recognition& model_found, const WrittenForm& orders)
      : config(config_text), recognized(model_found), model(*model_found.architecture), to(orders) {}

  const ConfigFields config;
  const Recognition& recognized;
  const Architecture& model;
  const WrittenForm& to;
  MegatronArgs written;

  const Family& family() const { return *model.family; }
  bool is_latent() const { return family().attention == Attention::Latent; }
  /// Returns whether the checkpoint has a matrix, or a bias, of that role.
  bool has(DenseRole role, TensorKind kind = TensorKind::Weight) const;

  /// Steps of multi-token prediction that the checkpoint has.
  i64 mtp_steps() const;

  /// `name` is spelled as Megatron-LM saves it: "num_layers" is written `--num-layers`.
  void flag(std::string_view name);
  void add(std::string_view name, std::string_view value);
  void add(std::string_view name, i64 value) { add(name, std::string_view(fmt::format("{}", value))); }
  void add_float(std::string_view name, double value) { add(name, std::string_view(float_text(value))); }
  template <typename... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) {
    written.warnings.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  i64 integer(Spellings names) const { return config.integer(names).value_or(0); }
  /// The value of a field that every run needs. Throws NoMap where neither config.json nor its class says it.
  template <typename Value>
  Value needed(const std::optional<Value>& value, std::string_view name) const {
    if (!value) fail_without(name);
    return *value;
  }
  i64 needed_integer(std::string_view name) const { return needed(config.integer({name}), name); }
  double needed_number(std::string_view name) const { return needed(config.number({name}), name); }

 private:
  [[noreturn]] void fail_without(std::string_view name) const;
};

struct ArgRow {
  /// The field of config.json that `to_config` makes; empty where it only judges the argument.
  std::string_view field;
  /// The argument as Megatron-LM saves it; empty where it follows from what Megatron-Core always does.
  std::string_view argument;
  /// Writes the argument, and others that belong to it; null where another row does.
  void (*to_argument)(ArgsWriter& args, const ArgRow& row) = nullptr;
  /// Returns the field's value as JSON; none: the field is left out. What the argument lacks goes to `missing`, what
  /// the field cannot say to `faults`, what no model of the family has to `strange`, a field that no argument says to
  /// `unsaid`. Null: this family's config.json says nothing of the argument.
  std::optional<std::string> (*to_config)(SavedArgs& args, const ArgRow& row) = nullptr;
  /// The value that the argument has in all models of the family, and the field's for it.
  std::string_view value{};
  std::string_view json{};
};

}  // namespace glu_ckpt
