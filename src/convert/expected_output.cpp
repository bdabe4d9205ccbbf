#include "convert/expected_output.hpp"

#include <fmt/format.h>

#include <set>
#include <tuple>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "families/architecture.hpp"
#include "format/checkpoint_files.hpp"
#include "format/output_format.hpp"
#include "model/known_orders.hpp"
#include "model/settle_copies.hpp"

namespace glu_ckpt {

OutputModel output_model(const Conversion& conversion, const Record& record) {
  const Plan& plan = conversion.plan;
  OutputModel model;
  for (const OutputTensor& output : plan.outputs)
    model.inventory.tensors.push_back(
        {output.name, output.dtype, output.shape, output.bytes, output.shard, output.offset});
  for (u32 shard = 0; shard < plan.num_shards; ++shard) model.inventory.files.push_back(fmt::format("shard {}", shard));
  // The output has a megatron_args.txt of its own, which says the order that its record does.
  ModelHints hints = conversion.source.hints;
  hints.listed = {};
  model.recognition = recognize_model(model.inventory, hints, record, {});
  if (!conversion.unlike_copies.empty()) take_as_own(conversion.unlike_copies, model.inventory, model.recognition);
  if (!model.recognition.idle.empty())
    settle_idle_like(conversion.source, plan.zeros, model.inventory, model.recognition);
  return model;
}

namespace {

/// The configuration by which an output is recognized that has no config.json beside it, such as a single file.
std::string recorded_config(const Conversion& conversion) {
  constexpr std::size_t kMaxRecordedConfigBytes = std::size_t{256} << 10;
  const std::string& config = conversion.source.hints.config;
  const bool is_known = conversion.source.recognition.architecture != nullptr;
  const bool has_file = !names_single_file(conversion.output) && conversion.target.config_is_found;
  return is_known && !has_file && config.size() <= kMaxRecordedConfigBytes ? config : std::string();
}

}  // namespace

Record make_record(const Conversion& conversion, const std::optional<Digest>& digest) {
  const Recognition& recognition = conversion.source.recognition;
  const LayoutAnswers& from = conversion.plan.from;
  const LayoutAnswers& to = conversion.plan.to;
  Record record{{"version", GLU_CKPT_VERSION}};
  const bool has_experts = !recognition.blocks.empty();
  if (has_experts) record["experts"] = to.experts;
  if (has_experts || to.is_dense()) record["glu"] = to_string(to.glu);
  // A family that nobody named is not to be believed later.
  if (has_experts && (recognition.naming_settled || to.naming != from.naming)) record["naming"] = to.naming;
  if (to.shared_glu) record["shared_glu"] = to_string(*to.shared_glu);
  if (to.optimizer_glu) record["optimizer_glu"] = to_string(*to.optimizer_glu);
  if (!conversion.plan.foreign_order.empty()) record["foreign_order"] = conversion.plan.foreign_order;
  if (digest) record["digest"] = record["source_digest"] = to_string(*digest);
  if (recognition.num_hidden_layers) record["num_hidden_layers"] = fmt::format("{}", *recognition.num_hidden_layers);
  for (const std::string_view key : {"decoded_from", "decoded_as", "merged", "merged_as", "merged_into", "encoded_as",
                                     "encoder", "encode_error", "scale_rows", "second_scales", "part", "part_options",
                                     "dtypes", "rounded", "padded_from", "filled", "filled_from", "lora_files"})
    if (const auto known = conversion.source.source->record().find(std::string(key));
        known != conversion.source.source->record().end())
      record[known->first] = known->second;
  if (recognition.architecture != nullptr) record["model_type"] = recognition.architecture->model_type;
  if (const std::string config = recorded_config(conversion); !config.empty()) record["config"] = config;
  record.insert(conversion.target.former_record.begin(), conversion.target.former_record.end());
  return record;
}

bool same_layout(const ModelShape& a, const ModelShape& b) {
  const auto tensors = [](const Inventory& inventory) {
    std::set<std::tuple<std::string, Dtype, std::vector<i64>>> all;
    for (const TensorRef& tensor : inventory.tensors) all.emplace(tensor.name, tensor.dtype, tensor.shape);
    return all;
  };
  const LayoutAnswers &x = a.recognition.layout, &y = b.recognition.layout;
  return tensors(a.inventory) == tensors(b.inventory) && x.glu == y.glu && x.shared_glu == y.shared_glu &&
         x.optimizer_glu == y.optimizer_glu;
}

void fail_contradicted(const Conversion& conversion, const std::string& recorded, const std::string& found) {
  const std::string input = conversion.input.string();
  fail(ErrorCode::RecordContradicts, {input, {}},
       "{}: its record says {}, its tensors give {}: it has changed since it was written. If that was meant, "
       "--accept-changes takes it as it is; otherwise find an intact copy",
       input, recorded, found);
}

std::string believed_digest(const Conversion& conversion) {
  return conversion.options.accept_changes ? std::string() : recorded_digest_of(conversion.source);
}

std::optional<Digest> recorded_digest(const Conversion& conversion, const Digest& blank) {
  const std::string recorded = believed_digest(conversion);
  if (recorded.empty()) return std::nullopt;
  const std::optional<Digest> digest = parse_digest(recorded);
  if (!digest || digest->tensors != blank.tensors || digest->bytes != blank.bytes)
    fail_contradicted(conversion, recorded,
                      fmt::format("{} matrices and tensors of {} bytes", blank.tensors, blank.bytes));
  return digest;
}

ExpectedOutput::ExpectedOutput(const Conversion& conversion, bool inherits_digest)
    : conversion_(conversion),
      inherits_digest_(inherits_digest),
      source_leaves_(conversion.source.source->inventory(), conversion.source.recognition),
      model_(output_model(conversion, blank_record())),
      output_leaves_(model_.inventory, model_.recognition) {}

Digest ExpectedOutput::blank_digest() const {
  const Checkpoint& adapter = conversion_.adapter;
  if (adapter.source == nullptr) return source_leaves_.blank();
  return ModelLeaves(adapter.source->inventory(), adapter.recognition).blank();
}

Record ExpectedOutput::record(const std::optional<Digest>& digest) const {
  const bool has_digest = conversion_.options.proof != ProofMode::None &&
                          !has_unknown_glu(conversion_.source.recognition) &&
                          conversion_.source.recognition.is_adapter == (conversion_.adapter.source != nullptr);
  if (!has_digest) return make_record(conversion_, std::nullopt);
  return make_record(conversion_, inherits_digest_ ? recorded_digest(conversion_, source_leaves_.blank()) : digest);
}

}  // namespace glu_ckpt
