#include <algorithm>

#include "core/fail.hpp"
#include "layout/recognize_steps.hpp"

namespace glu_ckpt {
namespace {

class NamingChooser {
 public:
  NamingChooser(const KeyGroups& keys, const ModelHints& hints, const Record& record, const SourceAnswers& answers,
                std::optional<i64> num_hidden_layers)
      : keys_(keys),
        model_type_(known_model_type(hints)),
        record_(record),
        answers_(answers),
        num_hidden_layers_(num_hidden_layers) {}

  ChosenNaming run() {
    if (answers_.naming)
      return choose_named(*answers_.naming, answers_.option_prefix + "naming", ErrorCode::UnexplainedKey);
    if (keys_.any_explained() == nullptr) return {};
    if (const std::string* naming = record_naming())
      return choose_named(*naming, "the record", ErrorCode::RecordContradicts);
    std::vector<const Naming*> candidates = explaining_namings();
    if (candidates.empty()) no_naming_fits();
    std::vector<const Naming*> named;
    for (const Naming* naming : candidates)
      if (lists_model_type(*naming)) named.push_back(naming);
    if (!named.empty()) return choose_by_shape(named, "hf:" + model_type_);
    if (agree(candidates)) return {candidates.front(), std::string(candidates.front()->name), true};
    return choose_unnamed(candidates);
  }

 private:
  const std::string* record_naming() const {
    const auto found = record_.find("naming");
    return found == record_.end() ? nullptr : &found->second;
  }

  /// The record, or else config.json, is an answer as good as --from-naming; where both fit the keys and
  /// read them differently, one of them is wrong.
  void check_family_agrees(const Naming& naming, const std::string& name) const {
    if (const std::string* recorded = record_naming()) {
      const Naming* row = find_naming(*recorded);
      if (row == nullptr || (keys_.first_unexplained(*row) == nullptr && agree({&naming, row}))) return;
      fail(ErrorCode::GluConflict, {},
           "{}naming says {}, but the record says {}. Both cannot be true; find out which "
           "one is",
           answers_.option_prefix, name, *recorded);
    }
    const Naming* other = nullptr;
    for (const Naming& row : namings()) {
      if (!lists_model_type(row) || keys_.first_unexplained(row) != nullptr) continue;
      if (&row == &naming || agree({&naming, &row})) return;
      other = &row;
    }
    if (other != nullptr)
      fail(ErrorCode::GluConflict, {},
           "{}naming says {}, but config.json names {}, which reads the same keys differently. Both cannot be "
           "true; find out which one is",
           answers_.option_prefix, name, model_type_);
  }

  ChosenNaming choose_named(const std::string& name, std::string_view who, ErrorCode code) {
    const Naming* naming = find_naming(name);
    if (naming == nullptr) {
      if (code == ErrorCode::RecordContradicts)
        fail(ErrorCode::RecordInvalid, {}, "the record names the unknown naming '{}'", name);
      fail(ErrorCode::UnknownNaming, {}, "'{}' is not a naming; `glu-ckpt layouts` lists them", name);
    }
    if (const TensorRef* key = keys_.first_unexplained(*naming))
      fail(code, {{}, key->name}, "{} says the naming is {}, which does not explain '{}'", who, name, key->name);
    if (code == ErrorCode::UnexplainedKey) check_family_agrees(*naming, name);
    std::vector<const Naming*> rows{naming};
    for (const Naming& other : namings())
      if (&other != naming && "hf:" + model_type_ == name && lists_model_type(other) &&
          keys_.first_unexplained(other) == nullptr)
        rows.push_back(&other);
    return choose_by_shape(rows, name);
  }

  std::vector<const Naming*> explaining_namings() const {
    std::vector<const Naming*> found;
    for (const Naming& naming : namings())
      if (keys_.first_unexplained(naming) == nullptr) found.push_back(&naming);
    const auto counts_if_named = [&](const Naming* naming) {
      return !naming->in_memory_of.empty() && !lists_model_type(*naming);
    };
    if (!std::ranges::all_of(found, counts_if_named)) std::erase_if(found, counts_if_named);
    return found;
  }

  [[noreturn]] void no_naming_fits() const {
    const bool is_listed = std::ranges::any_of(namings(), [&](const Naming& row) { return lists_model_type(row); });
    const Naming* best = nullptr;
    std::size_t most = 0;
    for (const Naming& naming : namings()) {
      if (is_listed && !lists_model_type(naming)) continue;
      std::size_t explained = 0;
      for (const KeyGroup& group : keys_.groups())
        if (group.pattern_of(naming) != nullptr) explained += group.tensors.size();
      if (best == nullptr || explained > most) {
        most = explained;
        best = &naming;
      }
    }
    const TensorRef* key = keys_.first_unexplained(*best);
    if (is_listed)
      fail(ErrorCode::UnexplainedKey, {{}, key->name},
           "config.json says model_type '{}', and experts of such models are known here as {}, which does not explain "
           "'{}': this form of them has no naming",
           model_type_, best->name, key->name);
    fail(ErrorCode::UnexplainedKey, {{}, key->name},
         "no single naming explains all expert keys: {} fits best, but not '{}'", best->name, key->name);
  }

  /// The model_type that a row lists: of a multimodal wrapper that no row knows, its language model's.
  static std::string known_model_type(const ModelHints& hints) {
    if (find_naming("hf:" + hints.model_type) != nullptr || hints.text_model_type.empty()) return hints.model_type;
    return hints.text_model_type;
  }

  bool lists_model_type(const Naming& naming) const {
    if (model_type_.empty()) return false;
    return naming.name == "hf:" + model_type_ || lists_type(naming, model_type_) ||
           std::ranges::find(naming.in_memory_of, model_type_) != naming.in_memory_of.end();
  }

  /// Returns whether all rows read the keys at hand alike: same axes, same order of gate and up, same nativeness.
  bool agree(const std::vector<const Naming*>& rows) const {
    for (const KeyGroup& group : keys_.groups()) {
      if (group.patterns.empty()) continue;
      const KeyPattern* first = group.pattern_of(*rows.front());
      for (const Naming* row : rows) {
        const KeyPattern* pattern = group.pattern_of(*row);
        if (pattern->role != first->role || pattern->set != first->set || pattern->experts != first->experts)
          return false;
        if (pattern->set == ExpertSet::Routed && row->axes != rows.front()->axes) return false;
        if (pattern->role == Role::GateUp && pattern_fixed_glu(*pattern) != pattern_fixed_glu(*first)) return false;
      }
    }
    return true;
  }

  static Glu pattern_fixed_glu(const KeyPattern& pattern) {
    return is_native(*pattern.naming, pattern.set, pattern.experts, true) ? fixed_glu(*pattern.naming) : Glu{};
  }

  /// Rows of one family that differ in orientation: FC1's and FC2's shapes together decide.
  ChosenNaming choose_by_shape(const std::vector<const Naming*>& rows, const std::string& name) {
    const Naming* chosen = rows.front();
    // clang 14 cannot compile std::views::reverse of this library.
    for (auto row = rows.rbegin(); row != rows.rend(); ++row)  // NOLINT(modernize-loop-convert)
      if (shapes_fit(**row)) chosen = *row;
    return {chosen, chosen != find_naming(name) ? std::string(chosen->name) : name, true};
  }

  bool shapes_fit(const Naming& naming) const {
    for (const auto& [id, draft] : keys_.drafts(naming, num_hidden_layers_))
      if (draft.block.set == ExpertSet::Routed && !axes_fit(draft.parts, keys_.inventory(), naming.axes)) return false;
    return true;
  }

  /// Several families fit and read the keys differently. Shapes may settle the axes, but never the order
  /// of gate and up: only the user can.
  ChosenNaming choose_unnamed(const std::vector<const Naming*>& candidates) {
    std::vector<const Naming*> fitting;
    for (const Naming* naming : candidates)
      if (shapes_fit(*naming)) fitting.push_back(naming);
    const bool one_axes = !fitting.empty() && std::ranges::all_of(fitting, [&](const Naming* naming) {
      return naming->axes == fitting.front()->axes;
    });
    if ((answers_.glu || record_.contains("glu")) && one_axes)
      return {fitting.front(), std::string(fitting.front()->name), false};
    std::string names;
    for (const Naming* naming : fitting.empty() ? candidates : fitting)
      names += (names.empty() ? "" : ", ") + std::string(naming->name);
    const TensorRef& key = *keys_.any_explained();
    fail(ErrorCode::AmbiguousNaming, {{}, key.name},
         "'{}' is spelled alike by families that store gate and up in different orders ({}), and {}. Say --from-naming "
         "NAME, or --from-glu",
         key.name, names,
         model_type_.empty() ? "no config.json names a model_type"
                             : fmt::format("config.json names none of them, but '{}'", model_type_));
  }

  const KeyGroups& keys_;
  std::string model_type_;
  const Record& record_;
  const SourceAnswers& answers_;
  std::optional<i64> num_hidden_layers_;
};

}  // namespace

ChosenNaming choose_naming(const KeyGroups& keys, const ModelHints& hints, const Record& record,
                           const SourceAnswers& answers, std::optional<i64> num_hidden_layers) {
  return NamingChooser(keys, hints, record, answers, num_hidden_layers).run();
}

}  // namespace glu_ckpt
