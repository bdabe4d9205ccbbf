#pragma once
/// The fields of a config.json by name, whatever their spelling.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/config_json.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

struct Family;

/// A family that spells a field like no other has a word for it (Family::words).
class ConfigFields {
 public:
  /// Reads the fields of the language model: of a multimodal one, what `text_config` says comes first. A text that is
  /// no JSON object has no fields. Fields of an object inside are called "rope_scaling.factor". A field that is under
  /// none of its spellings has the default of its `model_type`, if that has one. Of rope_scaling and rope_parameters
  /// the first counts where both are there, as in transformers.
  explicit ConfigFields(const std::string& text);

  /// Values of another type are as good as absent. So is null, which no default replaces.
  std::optional<i64> integer(Spellings names) const;
  std::optional<double> number(Spellings names) const;
  std::optional<bool> flag(Spellings names) const;
  std::string text(Spellings names) const;
  std::vector<i64> integers(Spellings names) const;
  std::vector<std::string> texts(Spellings names) const;
  /// Returns whether the text says it; defaults do not count.
  bool has(std::string_view name) const;
  /// Returns whether the class of the `model_type` has the field, as far as its family's rows and defaults say.
  bool is_of_class(std::string_view name) const;
  /// Returns whether the text says null.
  bool is_null(std::string_view name) const;
  /// The fields of the language model that the text says null of, in the order of their names.
  std::vector<std::string> nulls() const;
  /// Returns the value as it stands in the text, whether it counts or not; empty where it is not there.
  std::string said(std::string_view name) const;
  /// The first of the spellings that is there, for messages; the first of all where none is.
  std::string_view spelling(Spellings names) const;

  struct Said {
    std::string name;
    /// As it stands in the text.
    std::string value;
    /// Null, false, 0, 1, or empty: it switches off what the field is for, or multiplies by 1.
    bool is_off = false;
  };
  /// The fields of the language model that nothing has asked for, in the order of their names.
  std::vector<Said> unread() const;

 private:
  /// std::monostate is null.
  using Value =
      std::variant<std::monostate, bool, i64, double, std::string, std::vector<i64>, std::vector<std::string>>;
  using Values = std::map<std::string, Value, std::less<>>;
  void add_defaults();
  void choose_rope();
  std::string_view own_word(std::string_view name) const;
  /// Notes that these are asked for, whichever of them counts.
  void note_read(Spellings names) const;
  const Value* look_up(const Values& values, std::string_view name) const;
  template <typename Type>
  const Type* find(Spellings names) const;

  friend class ConfigFlattener;
  Values values_;
  Values defaults_;
  std::set<std::string, std::less<>> class_fields_;
  const Family* family_ = nullptr;
  /// All that the object of the language model says, and what was asked for.
  std::vector<Said> said_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace glu_ckpt
