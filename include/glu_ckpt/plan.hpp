#pragma once
/// A plan: the tensors to write and the moves that fill them. Pure: no I/O, no device.

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// One loop level of a Move. Steps are bytes.
struct MoveDim {
  i64 count = 1;
  i64 src_step = 0;
  i64 dst_step = 0;
  bool operator==(const MoveDim&) const = default;
};

/// The plan's first instruction: a strided copy of runs of bytes from one tensor into another.
/// For all indices i_l < dims[l].count it copies `run_bytes` bytes from
/// src_offset + sum(i_l * src_step) to dst_offset + sum(i_l * dst_step), both counted from the
/// tensors' first bytes. dims are sorted by dst_step, largest first; unused ones have count 1.
struct Move {
  std::size_t src = 0;
  std::size_t dst = 0;
  i64 src_offset = 0;
  i64 dst_offset = 0;
  std::array<MoveDim, 4> dims{};
  i64 run_bytes = 0;

  i64 runs() const { return dims[0].count * dims[1].count * dims[2].count * dims[3].count; }
  i64 bytes() const { return runs() * run_bytes; }
};

/// The plan's second instruction: a whole tensor computed from a whole one, element by element.
struct Compute {
  std::size_t src = 0;
  std::size_t dst = 0;
  ComputeOp op = ComputeOp::None;
  bool operator==(const Compute&) const = default;
};

/// A source tensor of which only the bytes before `bytes` are used.
struct CutTensor {
  std::size_t tensor = 0;
  i64 bytes = 0;
  bool operator==(const CutTensor&) const = default;
};

/// The tensors that a change of naming renames.
enum class Scope {
  /// All of a model whose architecture is known.
  Model,
  /// The experts alone, whatever the architecture.
  Experts,
};

/// The user's answers for the output; an empty answer keeps the source's.
struct TargetAnswers {
  std::optional<std::string> naming;
  std::optional<Experts> experts;
  std::optional<Experts> bias_experts;
  std::optional<Glu> glu;
  std::optional<Glu> shared_glu;
  Scope scope = Scope::Model;
  /// Tensors that no map knows travel with a model that gets another naming.
  bool keep_unknown = false;
  /// All layers share their tensors, along a leading axis, in a model that gets Megatron's naming.
  bool stack_layers = false;
};

/// How a layer's routed experts are stored.
struct ExpertForm {
  Experts experts = Experts::Indexed;
  /// None where FC1 has no order.
  std::optional<Glu> glu;
  bool operator==(const ExpertForm&) const = default;
};

/// By the layer's label, as layer_label() prints it.
using ExpertForms = std::map<std::string, ExpertForm, std::less<>>;

/// The entries in which an earlier conversion recorded a model as it was, for the way back.
struct FormerModel {
  /// The text in front of its keys.
  std::string root = "model.";
  /// The text in front of the layers of its experts, where they are renamed alone; absent where nobody knows.
  std::optional<std::string> expert_root;
  /// The keys of its tensors that repeat others; absent where nobody knows.
  std::optional<std::set<std::string>> copies;
  /// The dtype of its tensors that are computed; absent where nobody knows.
  std::optional<Dtype> computed_dtype;
  /// The forms of its layers, where they were not all alike; a layer that is not listed gets the answers for all.
  ExpertForms forms;
};

struct PlanOptions {
  TargetAnswers to;
  FormerModel former;
  /// Bytes of tensor data per shard; a larger tensor gets a shard of its own. 0: usual_shard_bytes() of the output.
  i64 max_shard_bytes = 0;
  /// Plan even where source and target layout are the same.
  bool force = false;
  /// The output is of another format than the source, so that a plan which moves nothing is one, too.
  bool new_format = false;
};

/// How a plan writes one block of experts.
struct WrittenExperts {
  Experts experts = Experts::Indexed;
  Experts bias_experts = Experts::Indexed;
  Glu glu;
  /// FC1 is one tensor.
  bool fused = false;
};

struct Plan {
  /// Grouped by shard, sorted by offset within one.
  std::vector<OutputTensor> outputs;
  /// Sorted by dst, and those of one output by dst_offset as make_plan() makes them; the moves of output t are
  /// [first_move[t], first_move[t + 1]).
  std::vector<Move> moves;
  std::vector<std::size_t> first_move;
  u32 num_shards = 0;
  /// The offset of each shard's data section in its file, modulo kDataPhaseBytes, with which the most pages of the
  /// source are pages of the output. It depends on nothing but the inventory and the moves.
  /// make_plan() leaves it empty, and a conversion to safetensors fills it.
  std::vector<i64> data_phases;
  /// Source tensors that are left out: on request, or as they repeat others; sorted.
  std::vector<std::size_t> dropped;
  /// Outputs that have no moves, sorted by dst.
  std::vector<Compute> computes;
  /// Outputs that repeat others: their bytes are read once more. Sorted.
  std::vector<std::size_t> repeats;
  /// Outputs that are zero and made of nothing in the source: they have no moves. Sorted.
  std::vector<std::size_t> zeros;
  /// Source tensors of which the end is not used; sorted.
  std::vector<CutTensor> cuts;
  /// The blocks of the recognition, in its order, as the output has them.
  std::vector<WrittenExperts> experts;
  LayoutAnswers from;
  LayoutAnswers to;
  /// The spelling of what is outside of the experts in the output: "megatron", "hf", "torchtitan"; empty: unknown.
  std::string rest;
  /// Says why a program that reads the output's keys would run it in another order of gate and up than it is in; empty
  /// where none would. It ends with the option that writes the order expected.
  std::string foreign_order;
  i64 bytes = 0;
  /// Sentences that the user should know.
  std::vector<std::string> notes;
};

/// Throws the refusals of ErrorCode. The result satisfies check_plan().
Plan make_plan(const Inventory& inventory, const Recognition& from, const PlanOptions& options);

/// Proves that every output byte is written exactly once and every source byte read exactly once, but
/// for the dropped tensors, of which none is read.
/// Throws PlanUnproved, naming the tensor.
void check_plan(const Inventory& inventory, const Plan& plan);

}  // namespace glu_ckpt
