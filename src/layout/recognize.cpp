/// Inventory -> Recognition: which row of the table explains the keys, and what order FC1's rows have.

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "core/fail.hpp"
#include "layout/choose_naming.hpp"
#include "layout/expert_like_names.hpp"

namespace glu_ckpt {
namespace {

const std::string* find_entry(const Record& record, const std::string& key) {
  const auto found = record.find(key);
  return found == record.end() ? nullptr : &found->second;
}

class Recognizer {
 public:
  Recognizer(const Inventory& inventory, const ModelHints& hints, const Record& record, const SourceAnswers& answers)
      : inventory_(inventory), keys_(inventory), hints_(hints), record_(record), answers_(answers) {}

  Recognition run() {
    refuse_mxfp4();
    read_num_hidden_layers();
    recorded_glu("glu");
    recorded_glu("shared_glu");
    ChosenNaming chosen = choose_naming(keys_, hints_, record_, answers_, result_.num_hidden_layers);
    result_.naming = chosen.naming;
    result_.layout.naming = std::move(chosen.name);
    result_.naming_settled = chosen.family_known;
    if (result_.naming != nullptr) {
      draft_blocks();
      finish_blocks();
    }
    list_others();
    summarize();
    check_record();
    return std::move(result_);
  }

 private:
  const TensorRef& tensor(std::size_t index) const { return inventory_.tensors[index]; }

  /// The hub releases of gpt-oss: packed E2M1 blocks and E8M0 scales in place of weights.
  void refuse_mxfp4() const {
    for (const KeyGroup& group : keys_.groups()) {
      const std::string& name = tensor(group.tensors.front()).name;
      if (name.ends_with(".experts.gate_up_proj_blocks"))
        fail(ErrorCode::NotSupported, {{}, name},
             "'{}': MXFP4 experts (blocks and scales) are not supported by this version; save the model in bf16 first",
             name);
    }
  }

  void read_num_hidden_layers() {
    result_.num_hidden_layers = hints_.num_hidden_layers;
    const std::string* recorded = find_entry(record_, "num_hidden_layers");
    if (recorded == nullptr) return;
    i64 layers = 0;
    const auto [end, error] = std::from_chars(recorded->data(), recorded->data() + recorded->size(), layers);
    if (error != std::errc() || end != recorded->data() + recorded->size() || layers < 1)
      fail(ErrorCode::RecordInvalid, {}, "the record's num_hidden_layers '{}' is not a number of layers", *recorded);
    result_.num_hidden_layers = layers;
  }

  // ---- blocks -----------------------------------------------------------------------------------

  void draft_blocks() {
    for (auto& [id, draft] : keys_.drafts(*result_.naming, result_.num_hidden_layers)) {
      BlockContext context{&inventory_, result_.naming, router_shape(draft.block), std::nullopt};
      if (draft.block.set == ExpertSet::Routed && draft.block.stack == "decoder")
        context.num_experts = hints_.num_experts;
      shapes_.push_back(check_block(std::move(draft.block), std::move(draft.parts), context));
    }
  }

  std::optional<std::pair<i64, i64>> router_shape(const ExpertBlock& block) const {
    if (by_name_.empty())
      for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) by_name_.emplace(tensor(i).name, i);
    const auto found = by_name_.find(block.key_prefix + std::string(result_.naming->router));
    if (found == by_name_.end() || tensor(found->second).shape.size() != 2) return std::nullopt;
    return std::pair{tensor(found->second).shape[0], tensor(found->second).shape[1]};
  }

  void finish_blocks() {
    for (BlockShape& shape : shapes_) check_answer_fits(shape);
    for (BlockShape& shape : shapes_) {
      ExpertBlock& block = shape.block;
      if (block.glu.kind != Glu::Kind::None) block.glu = block.fused ? fused_glu(block) : Glu{Glu::Kind::Split, 0};
      add_matrices(shape, inventory_);
      result_.blocks.push_back(std::move(block));
    }
    list_ragged_blocks();
  }

  /// The order of gate and up in a fused FC1, from whoever knows: the user, the record, the family.
  Glu fused_glu(const ExpertBlock& block) {
    const bool shared = block.set == ExpertSet::Shared;
    const auto& asked = shared ? answers_.shared_glu : answers_.glu;
    const auto recorded = recorded_glu(shared ? "shared_glu" : "glu");
    const Glu by_naming = result_.naming_settled && is_native(*result_.naming, block.set, block.experts, true)
                              ? fixed_glu(*result_.naming)
                              : Glu{};
    std::string& source = shared ? shared_source_ : result_.layout.glu_source;
    if (asked && recorded && *asked != *recorded)
      conflict(shared, *asked, fmt::format("the record says {}", to_string(*recorded)));
    if (asked && !recorded && by_naming.kind != Glu::Kind::Unknown && *asked != by_naming)
      conflict(shared, *asked, fmt::format("{} is {}", result_.layout.naming, to_string(by_naming)));
    if ((asked || recorded) && (asked ? *asked : *recorded).kind != Glu::Kind::Split) {
      source = asked ? "option" : "record";
      return asked ? *asked : *recorded;
    }
    source = by_naming.kind == Glu::Kind::Unknown ? "none" : "naming";
    return by_naming;
  }

  [[noreturn]] void conflict(bool shared, const Glu& asked, const std::string& other) const {
    fail(ErrorCode::GluConflict, {}, "{} says {}, but {}. Both cannot be true; find out which one is",
         answers_.option_prefix + (shared ? "shared-glu" : "glu"), to_string(asked), other);
  }

  std::optional<Glu> recorded_glu(const std::string& key) const {
    const std::string* text = find_entry(record_, key);
    if (text == nullptr || *text == "unknown" || *text == "none") return std::nullopt;
    try {
      return parse_glu(*text);
    } catch (const Error&) {
      fail(ErrorCode::RecordInvalid, {}, "the record's {} '{}' is not a glu arrangement", key, *text);
    }
  }

  /// An answer about FC1's order must be possible for the tensors it speaks about.
  void check_answer_fits(const BlockShape& shape) const {
    const ExpertBlock& block = shape.block;
    const bool shared = block.set == ExpertSet::Shared;
    const auto& asked = shared ? answers_.shared_glu : answers_.glu;
    const auto recorded = recorded_glu(shared ? "shared_glu" : "glu");
    check_recorded_gate(shape, shared ? "shared_glu" : "glu");
    if (!asked && !recorded) return;
    const Glu& answer = asked ? *asked : *recorded;
    const ErrorCode code = asked ? ErrorCode::GluConflict : ErrorCode::RecordContradicts;
    const std::string who = asked ? answers_.option_prefix + (shared ? "shared-glu" : "glu") : "the record";
    const std::string& name = fc1_name(shape);
    if (block.glu.kind == Glu::Kind::None)
      fail(code, {{}, name}, "{} says {}, but layer {} has no gate: FC1 and FC2 are of one width", who,
           to_string(answer), layer_label(block));
    // A checkpoint may mix packed and per-expert layers; an answer is then about the packed ones.
    const bool split = answer.kind == Glu::Kind::Split;
    const auto is_packed = [&](const BlockShape& other) { return other.block.set == block.set && other.block.fused; };
    if (block.fused ? split : !split && std::ranges::none_of(shapes_, is_packed))
      fail(code, {{}, name}, "{} says {}, but gate and up of layer {} are {}, such as '{}'", who, to_string(answer),
           layer_label(block), block.fused ? "one tensor" : "two tensors", name);
    if (answer.kind != Glu::Kind::Interleaved || !block.fused) return;
    for (const i64 f : shape.intermediate)
      if (f % answer.block_rows != 0)
        fail(asked ? ErrorCode::NotDivisible : ErrorCode::RecordContradicts, {{}, name},
             "{} says interleaved:{}, but '{}' has {} rows, which is no multiple of {}", who, answer.block_rows, name,
             2 * f, u64{2} * static_cast<u64>(answer.block_rows));
  }

  const std::string& fc1_name(const BlockShape& shape) const {
    for (const auto& [key, tensors] : shape.parts)
      if (std::get<Role>(key) != Role::Down && std::get<TensorKind>(key) == TensorKind::Weight)
        return tensor(tensors.front().second).name;
    return tensor(shape.parts.begin()->second.front().second).name;
  }

  void check_recorded_gate(const BlockShape& shape, const std::string& key) const {
    const std::string* text = find_entry(record_, key);
    if (text == nullptr || *text != "none" || shape.block.glu.kind == Glu::Kind::None) return;
    fail(ErrorCode::RecordContradicts, {}, "the record says that there is no gate ({}: none), but layer {} has one",
         key, layer_label(shape.block));
  }

  void list_ragged_blocks() {
    for (const ExpertBlock& block : result_.blocks)
      if (block.intermediate_size < 0)
        result_.problems.push_back(
            fmt::format("layer {}: experts differ in width; they cannot be grouped", layer_label(block)));
  }

  // ---- the rest ---------------------------------------------------------------------------------

  void list_others() {
    std::vector<i64> covered(inventory_.tensors.size(), -1);
    ExpertLikeNames expert_like(inventory_.tensors.size());
    for (const ExpertBlock& block : result_.blocks)
      for (const Matrix& matrix : block.matrices) {
        i64& bytes = covered[matrix.tensor];
        if (bytes < 0) expert_like.add_matrix(tensor(matrix.tensor).name);
        bytes = std::max<i64>(bytes, 0) + matrix.rows * matrix.cols * matrix.element_bytes;
      }
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
      if (covered[i] == tensor(i).bytes) continue;
      // A digest that left bytes of an expert out would call different models equal.
      if (covered[i] >= 0)
        fail(ErrorCode::ExpertShape, {{}, tensor(i).name}, "'{}' has {} bytes, but its matrices have {}",
             tensor(i).name, tensor(i).bytes, covered[i]);
      result_.others.push_back(i);
      if (expert_like.contains(tensor(i).name)) result_.unexplained.push_back(i);
    }
    if (!result_.unexplained.empty())
      result_.problems.push_back(
          fmt::format("{} tensors look like parts of experts but no naming explains them, such "
                      "as '{}'",
                      result_.unexplained.size(), tensor(result_.unexplained.front()).name));
  }

  void summarize() {
    LayoutAnswers& layout = result_.layout;
    bool seen = false;
    for (const ExpertBlock& block : result_.blocks) {
      if (block.set == ExpertSet::Shared) {
        if (!layout.shared_glu || block.fused) layout.shared_glu = block.glu;
        continue;
      }
      const std::string experts(to_string(block.experts));
      if (!seen) {
        layout.experts = experts;
        layout.glu = block.glu;
        if (block.glu.kind == Glu::Kind::Split || block.glu.kind == Glu::Kind::None) layout.glu_source = "naming";
      } else if (layout.experts != experts) {
        layout.experts = "mixed";
      }
      if (block.fused) layout.glu = block.glu;
      seen = true;
    }
    if (layout.glu_source.empty()) layout.glu_source = "none";
  }

  void check_record() const {
    const std::string* experts = find_entry(record_, "experts");
    if (experts == nullptr || result_.blocks.empty() || *experts == result_.layout.experts) return;
    fail(ErrorCode::RecordContradicts, {}, "the record says the experts are {}, but the keys are {}", *experts,
         result_.layout.experts.empty() ? "none" : result_.layout.experts);
  }

  const Inventory& inventory_;
  KeyGroups keys_;
  const ModelHints& hints_;
  const Record& record_;
  const SourceAnswers& answers_;
  std::vector<BlockShape> shapes_;
  mutable std::unordered_map<std::string_view, std::size_t> by_name_;
  std::string shared_source_;
  Recognition result_;
};

}  // namespace

Recognition recognize(const Inventory& inventory, const ModelHints& hints, const Record& record,
                      const SourceAnswers& answers) {
  return Recognizer(inventory, hints, record, answers).run();
}

}  // namespace glu_ckpt
