/// Field names are the contract's; fields are only ever added.

#include <sstream>

#include "core/json.hpp"
#include "report/report.hpp"
#include "report/text/diff_report.hpp"

namespace glu_ckpt::report {
namespace {

void write_layout(JsonWriter& json, const LayoutAnswers& layout) {
  json.begin_object();
  json.field("naming", layout.naming).field("experts", layout.experts).field("glu", to_string(layout.glu));
  json.key("shared_glu");
  if (layout.shared_glu)
    json.value(to_string(*layout.shared_glu));
  else
    json.null();
  json.field("glu_source", layout.glu_source);
  if (layout.optimizer_glu) json.field("optimizer_glu", to_string(*layout.optimizer_glu));
  json.end_object();
}

void write_list(JsonWriter& json, std::string_view name, const std::vector<std::string>& items) {
  json.key(name).begin_array();
  for (const std::string& item : items) json.value(item);
  json.end_array();
}

void write_loads_in(JsonWriter& json, const LoadsIn& found) {
  json.key("loads_in").begin_array();
  for (const Loader& loader : found.loaders)
    json.begin_object()
        .field("program", loader.program)
        .field("versions", loader.versions)
        .field("flags", loader.flags)
        .end_object();
  json.end_array();
  if (found.loaders.empty()) json.field("loads_in_nothing", found.why_none);
}

/// A size that differs between layers is null.
void write_number(JsonWriter& json, std::string_view name, i64 number) {
  json.key(name);
  if (number < 0)
    json.null();
  else
    json.value(number);
}

/// A layer that was not run has no figures; an infinite one is null, too.
void write_forward(JsonWriter& json, const LayerForward& layer) {
  json.begin_object();
  write_layer(json, layer.layer);
  json.field("tokens", layer.tokens);
  if (layer.fault.empty())
    json.field("differing_bits", layer.differing_bits).field("max_abs", layer.max_abs).field("max_rel", layer.max_rel);
  else
    json.key("differing_bits").null().key("max_abs").null().key("max_rel").null();
  json.field("control_caught", layer.control_caught).field("set", layer.set);
  json.key("first_expert");
  if (layer.first_expert >= 0)
    json.value(layer.first_expert);
  else
    json.null();
  json.field("differing_experts", layer.differing_experts).field("fault", layer.fault).end_object();
}

void write_layer_contents(JsonWriter& json, const std::vector<LayerContent>& layers) {
  json.key("layers").begin_array();
  for (const LayerContent& layer : layers) {
    json.begin_object();
    write_layer(json, layer.layer);
    json.field("num_experts", layer.num_experts).field("expert_bytes", layer.expert_bytes);
    json.field("shared_bytes", layer.shared_bytes).field("other_bytes", layer.other_bytes);
    json.key("beside_bytes").begin_object();
    for (const auto& [part, bytes] : layer.beside_bytes) json.field(part, bytes);
    json.end_object().end_object();
  }
  json.end_array();
}

/// What nobody says is null.
void write_model_size(JsonWriter& json, const ModelSize& size) {
  const auto write = [&](std::string_view name, i64 number) { write_number(json, name, number > 0 ? number : -1); };
  write("parameters", size.parameters.value_or(0));
  write("active_parameters", size.active_parameters.value_or(0));
  write("num_layers", size.layers);
  write("experts_per_token", size.experts_per_token);
  write("vocab_size", size.vocabulary);
  write("context", size.context);
  write("attention_heads", size.heads);
  write("key_value_heads", size.kv_heads);
  json.field("attention", size.attention).field("tied_embeddings", size.tied);
}

void write_tensor_list(JsonWriter& json, const Inventory& inventory, const std::vector<ListedTensor>& tensors) {
  json.key("tensor_list").begin_array();
  for (const ListedTensor& listed : tensors) {
    const TensorRef& tensor = inventory.tensors[listed.tensor];
    json.begin_object().field("name", tensor.name).field("dtype", dtype_name(tensor.dtype));
    json.key("shape").begin_array();
    for (const i64 extent : tensor.shape) json.value(extent);
    json.end_array().field("bytes", tensor.bytes).field("file", inventory.files.at(tensor.file)).key("matrix");
    if (listed.matrix.empty())
      json.null();
    else
      json.value(listed.matrix);
    json.end_object();
  }
  json.end_array();
}

void write_adapter(JsonWriter& json, const AdapterSummary& adapter) {
  json.key("adapter").begin_object();
  json.field("base_class", adapter.base_class).field("base", adapter.base_name);
  json.key("ranks").begin_array();
  for (const i64 rank : adapter.ranks) json.value(rank);
  json.end_array().field("lora_alpha", adapter.alpha).key("lora_alphas").begin_array();
  for (const double alpha : adapter.alphas) json.value(alpha);
  json.end_array().field("rslora", adapter.rank_stabilized);
  json.field("dora", adapter.is_dora);
  write_list(json, "targets", adapter.targets);
  json.field("expert_modules", adapter.expert_modules).field("other_modules", adapter.other_modules).end_object();
}

}  // namespace

std::string inspection_json(const Inspection& inspection, const std::optional<std::vector<ListedTensor>>& tensors) {
  const Totals sums = totals(inspection);
  const Inventory& inventory = inspection.source->inventory();
  JsonWriter json;
  json.begin_object().field("format", to_string(inspection.source->format())).key("layout");
  if (inspection.recognition && (!inspection.recognition->blocks.empty() || inspection.recognition->is_adapter))
    write_layout(json, inspection.recognition->layout);
  else
    json.null();
  json.field("moe_layers", sums.moe_layers).field("mtp_moe_layers", sums.mtp_layers);
  write_number(json, "num_experts", sums.num_experts);
  write_number(json, "hidden_size", sums.hidden_size);
  write_number(json, "moe_intermediate_size", sums.intermediate_size);
  write_list(json, "dtypes", sums.dtypes);
  json.field("tensors", static_cast<i64>(inventory.tensors.size()));
  json.field("files", static_cast<i64>(inventory.files.size()));
  json.field("bytes", inspection.source->file_bytes());
  json.field("optimizer", sums.optimizer);
  // The record has these of a part, and of a padded checkpoint.
  const Record& record = inspection.source->record();
  for (const char* entry : {"part", "padded_from"})
    if (const auto found = record.find(entry); found != record.end()) json.field(entry, found->second);
  write_list(json, "quantized", inspection.quantized);
  write_list(json, "quantized_parts", inspection.quantized_parts);
  write_list(json, "scales", inspection.scales);
  write_list(json, "problems", inspection.problems);
  write_loads_in(json, inspection.loads_in);
  write_list(json, "warnings", inspection.warnings);
  if (inspection.adapter) write_adapter(json, *inspection.adapter);
  write_layer_contents(json, layer_contents(inspection));
  write_model_size(json, inspection.size);
  if (tensors) write_tensor_list(json, inventory, *tensors);
  return json.end_object().text();
}

std::string conversion_json(const Conversion& conversion) {
  JsonWriter json;
  json.begin_object().field("output", conversion.output);
  json.key("from");
  if (conversion.plan != nullptr)
    write_layout(json, conversion.plan->from);
  else
    json.null();
  json.key("to");
  if (conversion.plan != nullptr)
    write_layout(json, conversion.plan->to);
  else
    json.null();
  json.field("tensors_written",
             conversion.plan != nullptr ? static_cast<i64>(conversion.plan->outputs.size()) : i64{0});
  json.field("bytes_written", conversion.bytes_written).field("bytes_cloned", conversion.bytes_cloned);
  json.field("seconds", conversion.seconds);
  json.field("bytes_per_second",
             conversion.seconds > 0
                 ? static_cast<double>(conversion.bytes_written + conversion.bytes_cloned) / conversion.seconds
                 : 0.0);
  json.field("peak_memory", conversion.peak_memory).field("device", conversion.device);
  json.field("up_to_date", conversion.up_to_date);
  json.key("digest");
  if (conversion.digest)
    json.value(to_string(*conversion.digest));
  else
    json.null();
  json.key("verified");
  if (conversion.verified.empty())
    json.null();
  else
    json.value(conversion.verified);
  if (conversion.dry_run) {
    json.field("disk_needed", conversion.disk_needed).field("disk_free", conversion.disk_free);
    json.field("filesystem", conversion.filesystem).key("estimated_seconds");
    if (conversion.estimated_seconds)
      json.value(*conversion.estimated_seconds);
    else
      json.null();
    std::vector<std::string> arguments;
    std::istringstream lines(conversion.megatron_args);
    for (std::string line; std::getline(lines, line);) arguments.push_back(line);
    write_list(json, "megatron_args", arguments);
  }
  write_loads_in(json, conversion.loads_in);
  write_list(json, "warnings", conversion.warnings);
  write_list(json, "refusals", conversion.refusals);
  write_list(json, "notes", conversion.plan != nullptr ? conversion.plan->notes : std::vector<std::string>{});
  return json.end_object().text();
}

std::string verdict_json(const Verdict& verdict, const std::vector<std::string>& warnings) {
  JsonWriter json;
  json.begin_object().field("equal", verdict.equal);
  json.field("digest_a", to_string(verdict.a)).field("digest_b", to_string(verdict.b));
  write_list(json, "missing", verdict.missing);
  write_list(json, "extra", verdict.extra);
  json.key("first_difference");
  if (const auto& first = verdict.first_difference) {
    json.begin_object();
    if (first->role.empty()) {
      json.key("layer").null().key("expert").null().key("role").null();
    } else {
      write_layer(json, first->layer);
      json.field("expert", first->expert).field("role", first->role);
    }
    json.key("head");
    if (first->head >= 0)
      json.value(first->head);
    else
      json.null();
    json.field("row", first->row).field("column", first->column).field("a", first->a).field("b", first->b);
    json.field("number_a", first->number_a).field("number_b", first->number_b);
    json.field("state", first->state)
        .field("set", first->set)
        .field("kind", first->kind)
        .field("tensor", first->tensor)
        .field("hint", first->hint);
    json.end_object();
  } else {
    json.null();
  }
  json.key("forward").begin_array();
  for (const LayerForward& layer : verdict.forward) write_forward(json, layer);
  json.end_array();
  const auto only_in_a = static_cast<i64>(without_unlike(verdict.missing, verdict.differences).size());
  const auto only_in_b = static_cast<i64>(without_unlike(verdict.extra, verdict.differences).size());
  json.field("differing", verdict.differing);
  json.field("unlike", static_cast<i64>(verdict.missing.size()) - only_in_a);
  json.field("only_in_a", only_in_a).field("only_in_b", only_in_b);
  json.field("same_layout", verdict.same_layout);
  write_list(json, "differing_padding", verdict.differing_padding);
  json.field("compared", verdict.compared).field("in_both", verdict.in_both);
  write_differences(json, verdict.differences);
  write_warnings(json, warnings);
  return json.end_object().text();
}

std::string layouts_json(const std::vector<NamingSummary>& rows) {
  JsonWriter json;
  json.begin_object().key("layouts").begin_array();
  for (const NamingSummary& row : rows) {
    json.begin_object().field("naming", row.name).field("experts", row.experts).field("axes", row.axes);
    json.field("glu", row.glu).field("example", row.example).field("loads_in", row.loads_in);
    write_list(json, "native", row.native);
    write_list(json, "model_types", row.model_types);
    json.end_object();
  }
  return json.end_array().end_object().text();
}

std::string error_json(const Error& error) {
  JsonWriter json;
  json.begin_object().field("error", slug(error.code())).field("message", std::string_view(error.what()));
  json.field("file", error.file()).field("tensor", error.tensor());
  if (!error.missing_options().empty()) write_list(json, "missing_options", error.missing_options());
  return json.end_object().text();
}

}  // namespace glu_ckpt::report
