/// Inventory -> Recognition: which row of the table explains the keys, and what order FC1's rows have.

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parse_number.hpp"
#include "layout/element_grid.hpp"
#include "layout/expert_block.hpp"
#include "layout/expert_like_names.hpp"
#include "layout/glu_answers.hpp"
#include "layout/optimizer_names.hpp"
#include "layout/recognize_steps.hpp"

namespace glu_ckpt {
namespace {

std::vector<std::size_t> optimizer_tensors(const Inventory& inventory) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i)
    if (is_optimizer_tensor(inventory.tensors[i].name)) found.push_back(i);
  return found;
}

/// Experts behind the last one that config.json counts as doing nothing (`zero_expert_num`). They have no weights, but
/// transformers saves an FC1 for each, which it never reads.
std::vector<std::size_t> idle_expert_tensors(const Inventory& inventory, const ModelHints& hints) {
  constexpr std::string_view kField = "zero_expert_num", kExperts = ".experts.";
  std::vector<std::size_t> found;
  if (!hints.num_experts || hints.config.find(kField) == std::string::npos) return found;
  constexpr int kDepth = 64;
  const JsonDocument config(hints.config, kDepth);
  const i64 idle = config.fault() ? 0 : config.root().find<i64>(kField).value_or(0);
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i) {
    const std::string_view name = inventory.tensors[i].name;
    const std::size_t at = name.find(kExperts);
    if (at == name.npos || name.ends_with(".down_proj.weight")) continue;
    const std::string_view behind = name.substr(at + kExperts.size());
    const auto expert = parse_index(behind.substr(0, behind.find('.')));
    if (expert && *expert >= *hints.num_experts && *expert - *hints.num_experts < idle) found.push_back(i);
  }
  return found;
}

/// The optimizer's tensors that are left out, and those that only travel with the model, whatever their own names say.
std::vector<std::size_t> ignored_tensors(const Inventory& inventory, std::vector<std::size_t> dropped,
                                         const std::vector<std::size_t>& idle) {
  dropped.insert(dropped.end(), idle.begin(), idle.end());
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i)
    if (inventory.tensors[i].name.starts_with(kUnknownPrefix)) dropped.push_back(i);
  std::ranges::sort(dropped);
  return dropped;
}

const std::string* find_entry(const Record& record, const std::string& key) {
  const auto found = record.find(key);
  return found == record.end() ? nullptr : &found->second;
}

class Recognizer {
 public:
  Recognizer(const Inventory& inventory, const ModelHints& hints, const Record& record, const SourceAnswers& answers)
      : inventory_(inventory),
        dropped_(answers.drop_optimizer ? optimizer_tensors(inventory) : std::vector<std::size_t>()),
        idle_(idle_expert_tensors(inventory, hints)),
        keys_(inventory, ignored_tensors(inventory, dropped_, idle_)),
        hints_(hints),
        record_(record),
        answers_(answers),
        orders_(record, answers) {}

  Recognition run() {
    read_num_hidden_layers();
    ChosenNaming chosen = choose_naming(keys_, hints_, record_, answers_, result_.num_hidden_layers);
    result_.naming = chosen.naming;
    result_.layout.naming = std::move(chosen.name);
    result_.naming_settled = chosen.family_known;
    if (result_.naming != nullptr) {
      collect();
      finish_blocks();
    }
    list_others();
    summarize();
    check_record();
    return std::move(result_);
  }

 private:
  const TensorRef& tensor(std::size_t index) const { return inventory_.tensors[index]; }

  void read_num_hidden_layers() {
    result_.num_hidden_layers = hints_.num_hidden_layers;
    const std::string* recorded = find_entry(record_, "num_hidden_layers");
    if (recorded == nullptr) return;
    const auto layers = parse_number<i64>(*recorded);
    if (!layers || *layers < 1)
      fail(ErrorCode::RecordInvalid, {}, "the record's num_hidden_layers '{}' is not a number of layers", *recorded);
    result_.num_hidden_layers = *layers;
  }

  // ---- blocks -----------------------------------------------------------------------------------

  /// Rows of the blocks that FP8 weights have scales for: what a conversion made of them, or what config.json says.
  i64 scale_rows() const {
    const std::string* recorded = find_entry(record_, "scale_rows");
    constexpr i64 kMost = std::numeric_limits<std::uint16_t>::max();
    if (recorded == nullptr) return std::clamp<i64>(hints_.scale_rows.value_or(kFp8Blocks.rows), 1, kMost);
    const auto rows = parse_number<i64>(*recorded);
    if (!rows || *rows < 1 || *rows > kFp8Blocks.rows)
      fail(ErrorCode::RecordInvalid, {}, "the record's scale_rows '{}' is no number of rows of a block", *recorded);
    return *rows;
  }

  void collect() {
    CollectedBlocks found = collect_blocks(keys_, *result_.naming, hints_, result_.num_hidden_layers, scale_rows());
    shapes_ = std::move(found.shapes);
    num_weight_blocks_ = found.num_weight_blocks;
    misfits_ = std::move(found.misfits);
    result_.bound = std::move(found.bound);
  }

  void finish_blocks() {
    for (const BlockShape& shape : shapes_)
      if (shape.block.fused) packed_.insert({shape.block.set, shape.block.is_optimizer_state()});
    check_gates();
    for (BlockShape& shape : shapes_) check_answer_fits(shape);
    for (BlockShape& shape : shapes_)
      if (shape.block.glu.kind != Glu::Kind::None) settle_glu(shape.block);
    for (BlockShape& shape : shapes_) {
      add_matrices(shape, inventory_);
      result_.blocks.push_back(std::move(shape.block));
    }
    list_ragged_blocks();
  }

  /// Experts without a gate are a form of their own, which no model has beside experts with one: there it was lost.
  void check_gates() const {
    std::map<std::pair<ExpertSet, bool>, const BlockShape*> gated;
    const auto kind_of = [](const BlockShape& shape) {
      return std::pair(shape.block.set, shape.block.is_optimizer_state());
    };
    for (const BlockShape& shape : shapes_)
      if (has_fc1(shape) && shape.block.glu.kind != Glu::Kind::None) gated.emplace(kind_of(shape), &shape);
    for (const BlockShape& shape : shapes_) {
      const auto other = gated.find(kind_of(shape));
      if (!has_fc1(shape) || shape.block.glu.kind != Glu::Kind::None || other == gated.end()) continue;
      const std::string& name = fc1_name(shape);
      fail(ErrorCode::PartMissing, {{}, name},
           "'{}' is there, but layer {}'s {} experts have no gate, which those of layer {} have; is the download "
           "complete?",
           name, layer_label(shape.block), to_string(shape.block.set), layer_label(other->second->block));
    }
  }

  void settle_glu(ExpertBlock& block) {
    if (block.fused) {
      block.glu = fused_glu(block);
      return;
    }
    block.glu = {Glu::Kind::Split, 0};
    const GluAnswer answer = answer_for(block);
    block.halved = answer.best() && is_halved(block, *answer.best());
    if (!block.halved) return;
    orders_.check_agreement(answer);
    block.glu = *answer.best();
    source_of(block) = orders_.source_of(answer);
  }

  /// Returns whether gate and up as two tensors are the halves of an interleaved FC1. Contiguous ones are the same
  /// as gate and up.
  bool is_halved(const ExpertBlock& block, const Glu& answer) const {
    return result_.naming->halves_by_position && answer.kind == Glu::Kind::Interleaved &&
           answer.block_rows < block.intermediate_size && !has_packed_like(block);
  }

  /// Returns whether blocks like this one, of this layer or another, hold FC1 as one tensor.
  bool has_packed_like(const ExpertBlock& block) const {
    return packed_.contains({block.set, block.is_optimizer_state()});
  }

  /// Returns what the user and the record say about a block. The optimizer's states are taken to be like the weights
  /// unless someone says otherwise.
  GluAnswer answer_for(const ExpertBlock& block) const {
    if (block.set == ExpertSet::Shared)
      return orders_.about_shared({hints_.trained.shared_glu, listed_order(hints_.listed.shared_glu)});
    const auto of_states = orders_.about_states();
    return block.is_optimizer_state() && of_states
               ? *of_states
               : orders_.about_weights({hints_.trained.glu, listed_order(hints_.listed.glu)});
  }

  /// A megatron_args.txt is about tensors for Megatron alone; it may lie beside those that were made of them.
  std::string listed_order(const std::string& glu) const {
    return result_.naming->name.starts_with("megatron") ? glu : std::string();
  }

  /// Returns the name of who settled the order of blocks like this one; only that of the routed weights is reported.
  std::string& source_of(const ExpertBlock& block) {
    const bool reported = block.set == ExpertSet::Routed && (!block.is_optimizer_state() || num_weight_blocks_ == 0);
    return reported ? result_.layout.glu_source : other_source_;
  }

  /// The order of gate and up in a fused FC1, from whoever knows: the user, the record, the family.
  Glu fused_glu(const ExpertBlock& block) {
    const GluAnswer answer = answer_for(block);
    const Glu by_naming = result_.naming_settled && is_native(*result_.naming, block.set, block.experts, true)
                              ? fixed_glu(*result_.naming)
                              : Glu{};
    orders_.check_agreement(answer);
    if (answer.asked && !answer.recorded && by_naming.kind != Glu::Kind::Unknown && *answer.asked != by_naming)
      orders_.conflict(answer, fmt::format("{} is {}", result_.layout.naming, to_string(by_naming)));
    if (answer.best() && answer.best()->kind != Glu::Kind::Split) {
      source_of(block) = orders_.source_of(answer);
      if (block.is_optimizer_state() && answer.option == "glu" && !answer.recorded)
        result_.optimizer_glu_assumed = true;
      return *answer.best();
    }
    source_of(block) = by_naming.kind == Glu::Kind::Unknown ? "none" : "naming";
    return by_naming;
  }

  /// An answer about FC1's order must be possible for the tensors it speaks about.
  void check_answer_fits(const BlockShape& shape) const {
    const ExpertBlock& block = shape.block;
    if (!has_fc1(shape)) return;
    const GluAnswer given = answer_for(block);
    check_recorded_gate(shape, given.key);
    if (!given.best()) return;
    const Glu& answer = *given.best();
    const ErrorCode code = given.asked ? ErrorCode::GluConflict : ErrorCode::RecordContradicts;
    const std::string who = orders_.name_of(given);
    const std::string& name = fc1_name(shape);
    // Megatron saves no block size of models without a gate either.
    const bool is_no_order = orders_.source_of(given) == "arguments" && answer.kind == Glu::Kind::Contiguous;
    if (block.glu.kind == Glu::Kind::None && is_no_order) return;
    if (block.glu.kind == Glu::Kind::None)
      fail(code, {{}, name}, "{} says {}, but layer {} has no gate: FC1 and FC2 are of one width", who,
           to_string(answer), layer_label(block));
    // A checkpoint may mix packed and per-expert layers; an answer is then about the packed ones.
    const bool split = answer.kind == Glu::Kind::Split;
    const bool about_packed = has_packed_like(block);
    if (block.fused ? split : !split && !about_packed && !result_.naming->halves_by_position)
      fail(code, {{}, name}, "{} says {}, but gate and up of layer {} are {}, such as '{}'", who, to_string(answer),
           layer_label(block), block.fused ? "one tensor" : "two tensors", name);
    if (answer.kind != Glu::Kind::Interleaved || (!block.fused && about_packed)) return;
    if (!block.fused && block.intermediate_size < 0)
      fail(ErrorCode::NotSupported, {{}, name},
           "{} says {}, but the experts of layer {} differ in width and gate and up are two tensors", who,
           to_string(answer), layer_label(block));
    for (const i64 f : shape.intermediate)
      if (f % answer.block_rows != 0)
        fail(given.asked ? ErrorCode::NotDivisible : ErrorCode::RecordContradicts, {{}, name},
             "{} says interleaved:{}, but '{}' has {} rows, which is no multiple of {}", who, answer.block_rows, name,
             block.fused ? 2 * f : f, u64{block.fused ? 2u : 1u} * static_cast<u64>(answer.block_rows));
  }

  /// The optimizer may have states of FC2 alone.
  static bool has_fc1(const BlockShape& shape) {
    return std::ranges::any_of(shape.parts, [](const auto& part) { return std::get<Role>(part.first) != Role::Down; });
  }

  const std::string& fc1_name(const BlockShape& shape) const {
    for (const auto& [key, tensors] : shape.parts)
      if (std::get<Role>(key) != Role::Down && is_weight(std::get<TensorKind>(key)))
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
      if (block.intermediate_size < 0 && !block.is_optimizer_state())
        result_.problems.push_back(
            fmt::format("layer {}: experts differ in width; they cannot be grouped", layer_label(block)));
  }

  // ---- the rest ---------------------------------------------------------------------------------

  void list_others() {
    std::vector<i64> covered(inventory_.tensors.size(), -1);
    ExpertLikeNames expert_like;
    const auto cover = [&](std::size_t index, i64 rows, const Matrix& matrix) {
      i64& bytes = covered[index];
      if (bytes < 0) expert_like.add_matrix(tensor(index).name);
      bytes = std::max<i64>(bytes, 0) + rows * padded(matrix.grid, {rows, matrix.cols}).cols * matrix.element_bytes;
    };
    for (const ExpertBlock& block : result_.blocks)
      for (const Matrix& matrix : block.matrices) {
        const i64 rows = matrix.tail ? matrix.tail->first_row : matrix.rows;
        cover(matrix.tensor, rows + padding_rows(matrix, shares_tensor(block, matrix)), matrix);
        if (matrix.tail) cover(matrix.tail->tensor, matrix.rows - rows, matrix);
      }
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
      if (covered[i] == tensor(i).bytes || std::ranges::binary_search(dropped_, i)) continue;
      // A digest that left bytes of an expert out would call different models equal.
      if (covered[i] >= 0)
        fail(ErrorCode::ExpertShape, {{}, tensor(i).name}, "'{}' has {} bytes, but its matrices have {}",
             tensor(i).name, tensor(i).bytes, covered[i]);
      result_.others.push_back(i);
    }
    sort_others(expert_like);
    result_.dropped = dropped_;
  }

  void sort_others(const ExpertLikeNames& expert_like) {
    std::vector<std::size_t> known;
    for (const BoundTensor& bound : result_.bound) known.push_back(bound.tensor);
    known.insert(known.end(), misfits_.begin(), misfits_.end());
    known.insert(known.end(), idle_.begin(), idle_.end());
    std::ranges::sort(known);
    result_.unexplained = misfits_;
    std::vector<std::size_t> alike;
    for (const std::size_t i : result_.others) {
      const TensorRef& ref = tensor(i);
      const bool is_bucket = is_bucket_key(ref.name);
      if (!is_bucket && !std::ranges::binary_search(known, i) && !ref.name.starts_with(kUnknownPrefix) &&
          expert_like.contains(ref.name))
        alike.push_back(i);
      else if (is_bucket || (is_unnamed_state_key(ref.name) && checked_product(ref.shape).value_or(2) > 1))
        result_.buckets.push_back(i);
    }
    list_problems(alike);
    result_.unexplained.insert(result_.unexplained.end(), alike.begin(), alike.end());
  }

  void list_problems(const std::vector<std::size_t>& alike) {
    if (!alike.empty())
      result_.problems.push_back(
          fmt::format("{} tensors look like parts of experts but no naming explains them, such as '{}'", alike.size(),
                      tensor(alike.front()).name));
    if (!misfits_.empty())
      result_.problems.push_back(fmt::format(
          "{} tensors of the optimizer's state do not have their weights' shapes, such as '{}' {}; the layout cannot "
          "change while they are there (--optimizer drop leaves them out)",
          misfits_.size(), tensor(misfits_.front()).name, shape_text(tensor(misfits_.front()).shape)));
    if (!result_.buckets.empty())
      result_.problems.push_back(fmt::format(
          "{} tensors of the optimizer do not say which parameters they belong to, such as '{}': flat buckets, or "
          "parameters by number; the layout cannot change while they are there (--optimizer drop leaves them out, or "
          "save once with --dist-ckpt-optim-fully-reshardable)",
          result_.buckets.size(), tensor(result_.buckets.front()).name));
  }

  void summarize() {
    LayoutAnswers& layout = result_.layout;
    const bool weights = num_weight_blocks_ > 0;
    const bool all_other = std::ranges::all_of(result_.blocks, is_of_other_model);
    for (const ExpertBlock& block : result_.blocks) {
      // Those of a model that talks keep their form where the language model's get another.
      if (is_of_other_model(block) && !all_other) continue;
      const bool has_fc1 = std::ranges::any_of(block.matrices, [](const Matrix& m) { return m.role != Role::Down; });
      if (block.is_optimizer_state() && block.set == ExpertSet::Routed && has_fc1 &&
          (!layout.optimizer_glu || block.fused))
        layout.optimizer_glu = block.glu;
      if (!weights || !block.is_optimizer_state()) summarize(block);
    }
    if (layout.glu_source.empty()) layout.glu_source = "none";
  }

  void summarize(const ExpertBlock& block) {
    LayoutAnswers& layout = result_.layout;
    if (block.set == ExpertSet::Shared) {
      if (!layout.shared_glu || block.fused) layout.shared_glu = block.glu;
      return;
    }
    const std::string experts(to_string(block.experts));
    if (layout.experts.empty()) {
      layout.experts = experts;
      layout.glu = block.glu;
      const bool by_keys = !block.fused && !block.halved;
      if (by_keys || block.glu.kind == Glu::Kind::None) layout.glu_source = "naming";
    } else if (layout.experts != experts) {
      layout.experts = "mixed";
    }
    if (block.fused) layout.glu = block.glu;
  }

  void check_record() const {
    const std::string* experts = find_entry(record_, "experts");
    if (experts == nullptr || result_.blocks.empty() || *experts == result_.layout.experts) return;
    fail(ErrorCode::RecordContradicts, {}, "the record says the experts are {}, but the keys are {}", *experts,
         result_.layout.experts.empty() ? "none" : result_.layout.experts);
  }

  const Inventory& inventory_;
  std::vector<std::size_t> dropped_;
  /// Tensors of experts that do nothing (idle_expert_tensors()).
  std::vector<std::size_t> idle_;
  KeyGroups keys_;
  const ModelHints& hints_;
  const Record& record_;
  const SourceAnswers& answers_;
  GluAnswers orders_;
  /// First the weights', then the optimizer's.
  std::vector<BlockShape> shapes_;
  std::size_t num_weight_blocks_ = 0;
  /// Sets of the weights or of their optimizer states that hold FC1 as one tensor in some layer.
  std::set<std::pair<ExpertSet, bool>> packed_;
  /// An optimizer's tensors of shapes that are not the weights'.
  std::vector<std::size_t> misfits_;
  std::string other_source_;
  Recognition result_;
};

}  // namespace

Recognition recognize(const Inventory& inventory, const ModelHints& hints, const Record& record,
                      const SourceAnswers& answers) {
  return Recognizer(inventory, hints, record, answers).run();
}

}  // namespace glu_ckpt
