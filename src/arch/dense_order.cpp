#include "arch/dense_order.hpp"

#include <algorithm>

#include "arch/dense_layout.hpp"
#include "arch/dense_table.hpp"
#include "core/fail.hpp"
#include "families/saved_args.hpp"
#include "layout/glu_answers.hpp"

namespace glu_ckpt {
namespace {

/// Returns the order of dense FC1s that arguments of a run mean, spelled as --from-glu takes it; empty where they mean
/// none. Megatron-Core interleaves them in its fused MLP alone, and does not fuse it under tensor parallelism.
std::string dense_order(const RunArguments& run) {
  if (run.args.empty()) return {};
  const SavedArgs args(run.args, {});
  if (!args.is_object()) return {};
  const auto is_set = [&](std::string_view name) { return args.flag(name); };
  if (!args.has(kFusedDenseArgs[1])) return run.glu == "contiguous" ? run.glu : std::string();
  const bool fused =
      std::ranges::all_of(kFusedDenseArgs, is_set) && args.integer("tensor_model_parallel_size").value_or(1) == 1;
  return fused ? fmt::format("interleaved:{}", kFusedDenseRows) : "contiguous";
}

}  // namespace

bool fuses_dense(const DenseNaming& naming) {
  bool fuses = false;
  for_each_row(naming, [&](const DenseRow& row) { fuses |= row.groups == Groups::GluBlocks; });
  return fuses;
}

void settle_dense_order(const ModelHints& hints, const Record& record, const SourceAnswers& answers,
                        Recognition& model) {
  LayoutAnswers& layout = model.layout;
  const bool fused = fuses_dense(*model.dense_naming);
  layout.glu = fused ? Glu{} : Glu{Glu::Kind::Split, 0};
  layout.glu_source = fused ? "none" : "naming";
  const GluAnswers orders(record, answers);
  std::string listed = dense_order(hints.listed);
  // No argument says another size of the blocks than the fused MLP's, so the record may have one.
  const auto recorded = record.find("glu");
  if (recorded != record.end() && recorded->second.starts_with("interleaved:") && listed != "contiguous")
    listed.clear();
  const GluAnswer given =
      orders.about_weights(fused ? ArgumentOrders{dense_order(hints.trained), listed} : ArgumentOrders{});
  if (!given.best()) return;
  orders.check_agreement(given);
  const Glu& answer = *given.best();
  const i64 width = extents_of(DenseRole::MlpGate, TensorKind::Weight, *model.architecture).rows;
  if ((answer.kind == Glu::Kind::Split) == fused)
    fail(given.asked ? ErrorCode::GluConflict : ErrorCode::RecordContradicts, {},
         "{} says {}, but gate and up of a dense layer are {} in the naming {}", orders.name_of(given),
         to_string(answer), fused ? "one tensor" : "two tensors", layout.naming);
  if (answer.kind == Glu::Kind::Interleaved && width % answer.block_rows != 0)
    fail(given.asked ? ErrorCode::NotDivisible : ErrorCode::RecordContradicts, {},
         "{} says interleaved:{}, but a dense FC1 has {} rows by config.json, which is no multiple of {}",
         orders.name_of(given), answer.block_rows, 2 * width, u64{2} * static_cast<u64>(answer.block_rows));
  layout.glu = answer;
  layout.glu_source = fused ? orders.source_of(given) : "naming";
}

i64 dense_block_rows(const Glu& glu, i64 width, const std::string& name) {
  const i64 rows = glu.kind == Glu::Kind::Interleaved ? glu.block_rows : width;
  if (rows < 1 || width % rows != 0)
    fail(ErrorCode::NotDivisible, {{}, name}, "{}: {} rows; interleaved:{} needs a multiple of {}: K must divide {}",
         name, 2 * width, rows, u64{2} * static_cast<u64>(rows), width);
  return rows;
}

}  // namespace glu_ckpt
