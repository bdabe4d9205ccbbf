#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "glu_ckpt/explain_layout.hpp"
#include "report/report.hpp"
#include "report/text/diff_report.hpp"

namespace glu_ckpt::report {
namespace {

/// Says where modules are multiplied by several numbers.
std::string scales_text(const AdapterSummary& adapter) {
  if (adapter.least_scale == adapter.greatest_scale) return {};
  return fmt::format(": lora_alpha/{} from {:.4g} to {:.4g}", adapter.rank_stabilized ? "sqrt(r)" : "r",
                     adapter.least_scale, adapter.greatest_scale);
}

std::string adapter_text(const AdapterSummary& adapter, const LayoutAnswers& layout) {
  std::string text = fmt::format("layout      {}\n", explain_layout(layout));
  std::string base = adapter.base_class;
  if (!adapter.base_name.empty()) base += (base.empty() ? "" : ", ") + adapter.base_name;
  text += fmt::format("base        {}\n", base.empty() ? "not said" : printable(base));
  text += fmt::format("ranks       {}, lora_alpha {}{}{}{}\n", fmt::join(adapter.ranks, " "),
                      fmt::join(adapter.alphas, " "), scales_text(adapter), adapter.rank_stabilized ? ", rslora" : "",
                      adapter.is_dora ? ", DoRA" : "");
  text += fmt::format("targets     {}\n", printable(fmt::format("{}", fmt::join(adapter.targets, " "))));
  return text +
         fmt::format("modules     {} of routed experts, {} others\n", adapter.expert_modules, adapter.other_modules);
}

/// Names what settled the order of gate and up.
std::string_view glu_source_text(std::string_view source) {
  if (source == "option") return "the option that says it";
  if (source == "record") return "the checkpoint's record (glu_ckpt.json, or the file's own)";
  if (source == "arguments") return "the arguments that the trainer saved";
  if (source == "megatron_args.txt") return "megatron_args.txt, which lies beside it";
  return source == "naming" ? "the naming, which fixes it" : "nothing: it is unknown";
}

std::string number_or_mixed(i64 number) { return number < 0 ? "mixed" : fmt::format("{}", number); }

std::string difference_text(const Difference& difference) {
  std::string text;
  if (difference.role.empty()) {
    text = fmt::format("first difference: {}", printable(difference.tensor));
  } else {
    const bool is_weight = difference.state.empty() || difference.state == "model";
    const std::string of = is_weight ? "" : printable(difference.state) + " of ";
    const std::string place = difference.layer.empty() ? std::string() : fmt::format("layer {}, ", difference.layer);
    const std::string expert =
        difference.set.empty() ? std::string() : fmt::format("{} expert {}, ", difference.set, difference.expert);
    text = fmt::format("first difference: {}{}{}{} {}", of, place, expert, difference.role, difference.kind);
    if (difference.head >= 0) text += fmt::format(", head {}", difference.head);
  }
  text += fmt::format(", row {}, column {}: {} in A, {} in B\n", difference.row, difference.column,
                      value_text(difference.number_a, difference.a), value_text(difference.number_b, difference.b));
  if (!difference.role.empty()) text += fmt::format("  in A's tensor {}\n", printable(difference.tensor));
  if (!difference.hint.empty()) text += fmt::format("  {}\n", difference.hint);
  return text;
}

std::string loads_in_text(const LoadsIn& found) {
  if (found.loaders.empty())
    return fmt::format("loads in    {}: {}\n", found.is_unknown ? "unknown" : "nothing as it is",
                       printable(found.why_none));
  std::string text;
  for (const Loader& loader : found.loaders)
    text += fmt::format("{:<12}{}, {}{}{}\n", text.empty() ? "loads in" : "", loader.program, loader.versions,
                        loader.flags.empty() ? "" : ", ", loader.flags);
  return text;
}

std::string list_text(const std::string& title, const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += fmt::format("{}: {}\n", title, printable(names[i]));
  if (names.size() > kShown) text += fmt::format("{}: and {} more\n", title, names.size() - kShown);
  return text;
}

}  // namespace

Totals totals(const Inspection& inspection) {
  Totals sums;
  std::set<std::string> dtypes;
  for (const TensorRef& tensor : inspection.source->inventory().tensors) {
    dtypes.insert(std::string(dtype_name(tensor.dtype)));
    sums.optimizer |= is_optimizer_tensor(tensor.name);
  }
  sums.dtypes.assign(dtypes.begin(), dtypes.end());
  if (!inspection.recognition) return sums;
  bool is_first = true;
  const auto merge = [&](i64& into, i64 value) { into = is_first || into == value ? value : -1; };
  const auto is_mtp = [](const ExpertBlock& block) { return block.stack.starts_with("mtp"); };
  const auto& blocks = inspection.recognition->blocks;
  const bool weights =
      std::ranges::any_of(blocks, [](const ExpertBlock& block) { return !block.is_optimizer_state(); });
  const bool has_stack = std::ranges::any_of(
      blocks, [&](const ExpertBlock& block) { return block.set == ExpertSet::Routed && !is_mtp(block); });
  for (const ExpertBlock& block : blocks) {
    if (block.set == ExpertSet::Shared || (block.is_optimizer_state() && weights)) continue;
    if (is_mtp(block)) ++sums.mtp_layers;
    if (is_mtp(block) && has_stack) continue;
    merge(sums.num_experts, block.num_experts);
    merge(sums.hidden_size, block.hidden_size);
    merge(sums.intermediate_size, block.intermediate_size);
    is_first = false;
    if (!is_mtp(block)) ++sums.moe_layers;
  }
  return sums;
}

namespace {

/// Neighbours that hold the same are one line.
std::string layers_text(const std::vector<LayerContent>& layers) {
  const auto alike = [](const LayerContent& a, const LayerContent& b) {
    return !a.layer.empty() && !b.layer.empty() && a.num_experts == b.num_experts && a.expert_bytes == b.expert_bytes &&
           a.shared_bytes == b.shared_bytes && a.other_bytes == b.other_bytes;
  };
  std::string text;
  for (std::size_t first = 0, last = 0; first < layers.size(); first = last + 1) {
    for (last = first; last + 1 < layers.size() && alike(layers[first], layers[last + 1]);) ++last;
    const LayerContent& layer = layers[first];
    std::vector<std::string> parts;
    // How many experts share an adapter's factors is not told by these.
    if (layer.expert_bytes > 0)
      parts.push_back(fmt::format("{} experts {}",
                                  layer.num_experts > 0 ? fmt::format("{}", layer.num_experts) : "routed",
                                  size_text(layer.expert_bytes)));
    if (layer.shared_bytes > 0) parts.push_back(fmt::format("shared expert {}", size_text(layer.shared_bytes)));
    if (layer.other_bytes > 0) parts.push_back(fmt::format("rest {}", size_text(layer.other_bytes)));
    const std::string name = layer.layer.empty() ? "no layer"
                             : first == last     ? "layer " + layer.layer
                                                 : fmt::format("layers {} to {}", layer.layer, layers[last].layer);
    text += fmt::format("{:<12}{}: {}{}\n", text.empty() ? "layers" : "", printable(name), fmt::join(parts, ", "),
                        first == last ? "" : " in each");
  }
  return text;
}

}  // namespace

std::string tensors_text(const Inspection& inspection, const std::vector<ListedTensor>& tensors) {
  const Inventory& inventory = inspection.source->inventory();
  std::vector<std::array<std::string, 6>> rows = {{"NAME", "DTYPE", "SHAPE", "BYTES", "FILE", "MATRIX"}};
  for (const ListedTensor& listed : tensors) {
    const TensorRef& tensor = inventory.tensors[listed.tensor];
    rows.push_back({printable(tensor.name), std::string(dtype_name(tensor.dtype)), shape_text(tensor.shape),
                    std::to_string(tensor.bytes), printable(inventory.files.at(tensor.file)),
                    printable(listed.matrix)});
  }
  std::array<std::size_t, 6> widths{};
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) line += fmt::format("{:<{}}  ", row[c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

namespace {

/// "30.53B"
std::string count_text(i64 count) {
  constexpr std::string_view kUnits[] = {"", "K", "M", "B", "T"};
  auto amount = static_cast<double>(count);
  std::size_t unit = 0;
  for (; amount >= 1000 && unit + 1 < std::size(kUnits); ++unit) amount /= 1000;
  return unit == 0 ? fmt::format("{}", count) : fmt::format("{:.2f}{}", amount, kUnits[unit]);
}

std::string size_of_model_text(const ModelSize& size, const Totals& sums, bool has_mtp) {
  std::string text;
  if (size.parameters) {
    text = fmt::format("parameters  {} ({})", count_text(*size.parameters), *size.parameters);
    if (size.active_parameters) text += fmt::format(", {} of them for each token", count_text(*size.active_parameters));
    if (has_mtp)
      text += fmt::format("; {} multi-token prediction", size.active_parameters ? "both count" : "it counts");
    text += "\n";
  }
  std::vector<std::string> parts;
  if (size.layers > 0) parts.push_back(fmt::format("{} layer{}", size.layers, size.layers == 1 ? "" : "s"));
  if (size.experts_per_token > 0)
    parts.push_back(
        fmt::format("{} of {} experts for each token", size.experts_per_token, number_or_mixed(sums.num_experts)));
  if (size.vocabulary > 0) parts.push_back(fmt::format("vocabulary {}", size.vocabulary));
  if (size.context > 0) parts.push_back(fmt::format("context {}", size.context));
  if (size.tied) parts.emplace_back("the head is the embedding");
  if (!parts.empty()) text += fmt::format("model       {}\n", fmt::join(parts, ", "));
  if (!size.attention.empty())
    text += fmt::format("attention   {}{}\n", size.attention,
                        size.heads == 0 ? ""
                        : size.kv_heads == 0 || size.kv_heads == size.heads
                            ? fmt::format(": {} heads", size.heads)
                            : fmt::format(": {} heads, {} of keys and values", size.heads, size.kv_heads));
  return text;
}

/// Says of a checkpoint that was made of a larger one, or padded, what its record says of that.
std::string origin_text(const Record& record, const Totals& sums) {
  std::string text;
  if (const auto part = record.find("part"); part != record.end())
    text += fmt::format("part        of a larger model: {}\n", printable(part->second));
  if (const auto width = record.find("padded_from");
      width != record.end() && width->second != fmt::format("{}", sums.intermediate_size))
    text += fmt::format("padded      experts, with zeros, from a width of {} to {}\n", printable(width->second),
                        number_or_mixed(sums.intermediate_size));
  return text;
}

/// Says what sees, hears or talks beside a language model. Its bytes are among those of no layer.
std::string beside_text(const std::vector<LayerContent>& layers) {
  std::map<std::string, i64> bytes;
  for (const LayerContent& layer : layers)
    for (const auto& [part, of_layer] : layer.beside_bytes) bytes[part] += of_layer;
  std::vector<std::string> parts;
  for (const auto& [part, of_part] : bytes) parts.push_back(fmt::format("{} {}", part, size_text(of_part)));
  return parts.empty() ? ""
                       : fmt::format("beside      the language model: {}, in the rest; --drop vision leaves it out\n",
                                     fmt::join(parts, ", "));
}

}  // namespace

std::string inspection_text(const Inspection& inspection) {
  const Source& source = *inspection.source;
  const Totals sums = totals(inspection);
  std::string text = fmt::format("path        {}\n", source.path().string());
  text += fmt::format("format      {}, {} file{}, {} ({} bytes) with headers\n", to_string(source.format()),
                      source.inventory().files.size(), source.inventory().files.size() == 1 ? "" : "s",
                      size_text(source.file_bytes()), source.file_bytes());
  text += fmt::format("tensors     {}, {}\n", source.inventory().tensors.size(), fmt::join(sums.dtypes, " "));
  if (!inspection.quantized.empty())
    text += fmt::format(
        "quantized   {}{}; --decode bf16 reads the weights as bf16\n", fmt::join(inspection.quantized, ", "),
        inspection.quantized_parts.empty() ? "" : fmt::format(": {}", fmt::join(inspection.quantized_parts, ", ")));
  if (!inspection.scales.empty()) text += fmt::format("scales      {}\n", fmt::join(inspection.scales, "; "));
  if (const CheckpointInfo& info = source.info(); !info.decoded_weights.empty())
    text += fmt::format("decoded     {} weights from {}, as {} decodes them\n", info.decoded_weights.size(),
                        info.record.at("decoded_from"), info.record.at("decoded_as"));
  if (inspection.recognition && !inspection.recognition->blocks.empty()) {
    const LayoutAnswers& layout = inspection.recognition->layout;
    text += fmt::format("layout      {}\n", explain_layout(layout));
    text += fmt::format("glu from    {}\n", glu_source_text(layout.glu_source));
    text += fmt::format("moe layers  {}{}: {} experts, hidden size {}, intermediate size {}\n", sums.moe_layers,
                        sums.mtp_layers > 0 ? fmt::format(", and {} of multi-token prediction", sums.mtp_layers) : "",
                        number_or_mixed(sums.num_experts), number_or_mixed(sums.hidden_size),
                        number_or_mixed(sums.intermediate_size));
  } else if (inspection.adapter) {
    text += adapter_text(*inspection.adapter, inspection.recognition->layout);
  } else if (inspection.recognition) {
    const LayoutAnswers& layout = inspection.recognition->layout;
    text += fmt::format("layout      {}\n", layout.is_dense() ? explain_layout(layout) : "no experts");
  }
  text += origin_text(source.record(), sums);
  const std::vector<LayerContent> layers = layer_contents(inspection);
  text += size_of_model_text(inspection.size, sums, std::ranges::any_of(layers, [](const LayerContent& content) {
                               return content.layer.starts_with("mtp");
                             }));
  text += layers_text(layers);
  text += beside_text(layers);
  if (inspection.recognition) text += loads_in_text(inspection.loads_in);
  for (const std::string& problem : inspection.problems) text += fmt::format("problem     {}\n", printable(problem));
  return text;
}

namespace {

/// ", for PEFT 0.18 with transformers 5", or the programs where there are several: what tells two layouts of an adapter
/// apart, whose tensors have the same names.
std::string readers_text(const LoadsIn& found) {
  if (found.loaders.empty()) return "; what reads it is not known";
  if (found.loaders.size() == 1)
    return fmt::format(", for {} {}", found.loaders.front().program, found.loaders.front().versions);
  std::string text;
  for (const Loader& loader : found.loaders) text += (text.empty() ? ", for " : ", ") + loader.program;
  return text;
}

}  // namespace

std::string conversion_text(const Conversion& conversion) {
  const Plan& plan = *conversion.plan;
  std::string text = fmt::format("from        {}\n", explain_layout(plan.from));
  const std::string reader = plan.to.naming == "adapter" ? readers_text(conversion.loads_in) : "";
  text += fmt::format("to          {}{}\n", explain_layout(plan.to), reader);
  text += fmt::format("{} {}\n",
                      conversion.dry_run      ? "would write"
                      : conversion.up_to_date ? "up to date "
                                              : "wrote      ",
                      conversion.output);
  text += fmt::format("            {} tensors in {} file{}, {} ({} bytes) without headers\n", plan.outputs.size(),
                      plan.num_shards, plan.num_shards == 1 ? "" : "s", size_text(plan.bytes), plan.bytes);
  if (conversion.dry_run) {
    text += fmt::format("moves       {}, peak memory about {}\n", plan.moves.size(), size_text(conversion.peak_memory));
    if (conversion.bytes_cloned > 0)
      text += fmt::format("clones      {} ({} bytes), which share their blocks with the source\n",
                          size_text(conversion.bytes_cloned), conversion.bytes_cloned);
    text += fmt::format("disk needed {} of {} free on {}\n", size_text(conversion.disk_needed),
                        size_text(conversion.disk_free), conversion.filesystem);
    if (conversion.estimated_seconds)
      text += fmt::format("takes about {:.1f} s, by a sample of the work{}\n", *conversion.estimated_seconds,
                          conversion.bytes_cloned > 0 ? ", without what is cloned" : "");
    text += loads_in_text(conversion.loads_in);
    std::istringstream lines(conversion.megatron_args);
    const char* label = "arguments   ";
    for (std::string line; std::getline(lines, line); label = "            ")
      text += fmt::format("{}{}\n", label, line);
    return text;
  }
  if (conversion.bytes_cloned > 0)
    text += fmt::format("cloned      {} ({} bytes), which share their blocks with the source\n",
                        size_text(conversion.bytes_cloned), conversion.bytes_cloned);
  text += fmt::format("time        {:.2f} s, {}/s, peak memory {}\n", conversion.seconds,
                      size_text(static_cast<i64>(static_cast<double>(plan.bytes) / std::max(conversion.seconds, 1e-9))),
                      size_text(conversion.peak_memory));
  const bool sampled = conversion.verified == "sample";
  if (conversion.digest)
    text += fmt::format("digest      {}{}\n", to_string(*conversion.digest),
                        sampled ? ", as the source's record has it" : "");
  text += fmt::format("verified    {}\n", conversion.verified.empty() ? "no" : conversion.verified);
  if (sampled)
    text += fmt::format(
        "            the plan is proved; {} rows and blocks ({}) are the same in both; other bytes that were cloned "
        "were "
        "not read (--verify readback reads them)\n",
        conversion.sample.rows, size_text(conversion.sample.bytes));
  return text + loads_in_text(conversion.loads_in);
}

namespace {

std::string differing_padding_text(const std::vector<std::string>& tensors) {
  if (tensors.empty()) return {};
  return fmt::format(
      "not byte-identical: {} differ{} in padding, such as rows behind vocab_size, which is no part of the model and "
      "in "
      "no digest; first in {}\n",
      tensors.size() == 1 ? "1 tensor" : fmt::format("{} tensors", tensors.size()), tensors.size() == 1 ? "s" : "",
      tensors.front());
}

std::string bytes_text(const Verdict& verdict, bool every_tensor) {
  std::string text;
  if (verdict.missing.empty() && verdict.extra.empty() && verdict.differing == 0 && verdict.a == verdict.b) {
    if (verdict.compared < verdict.in_both)
      return fmt::format("equal as far as was asked: {} of {} matrices and tensors, {}\n", verdict.compared,
                         verdict.in_both, size_text(verdict.a.bytes)) +
             configs_text(verdict.differences.configs);
    text = fmt::format("equal: the same {} matrices and tensors, {}\n", verdict.a.tensors, size_text(verdict.a.bytes));
    if (verdict.same_layout)
      text += fmt::format("{}every tensor is byte-identical, with the same name, dtype and shape\n",
                          verdict.is_as_answered ? "as the options read them, " : "");
    text += differing_padding_text(verdict.differing_padding) + configs_text(verdict.differences.configs);
    return text + to_string(verdict.a) + "\n";
  }
  const std::vector<std::string> only_a = without_unlike(verdict.missing, verdict.differences);
  const std::vector<std::string> only_b = without_unlike(verdict.extra, verdict.differences);
  const std::size_t unlike = verdict.missing.size() - only_a.size();
  const i64 differing = verdict.differing + static_cast<i64>(unlike);
  if (differing == 0 && only_a.empty() && only_b.empty())
    return fmt::format("different: the digests differ, and a digest does not say where\nA {}\nB {}\n",
                       to_string(verdict.a), to_string(verdict.b));
  text = fmt::format(
      "different: {}, {} only in A, {} only in B\n",
      differing == 1 ? "1 matrix or tensor differs" : fmt::format("{} matrices and tensors differ", differing),
      only_a.size(), only_b.size());
  if (verdict.first_difference) text += difference_text(*verdict.first_difference);
  if (!verdict.differences.tensors.empty()) text += differences_text(verdict.differences, every_tensor);
  text += list_text("only in A", only_a) + list_text("only in B", only_b) + configs_text(verdict.differences.configs);
  if (verdict.compared < verdict.in_both)
    return text + fmt::format("compared: {} of {} matrices and tensors\n", verdict.compared, verdict.in_both);
  return text + fmt::format("A {}\nB {}\n", to_string(verdict.a), to_string(verdict.b));
}

/// Layers that are not as they should be, or one line for all.
std::string forward_text(const std::vector<LayerForward>& layers) {
  i64 tokens = 0;
  std::set<std::string> labels;
  std::vector<std::string> wrong;
  for (const LayerForward& layer : layers) {
    tokens += layer.tokens;
    labels.insert(layer.layer);
    if (!layer.ok()) wrong.push_back(to_sentence(layer));
  }
  if (!wrong.empty()) return list_text("forward", wrong);
  return fmt::format(
      "forward: the experts of {} layer{} compute the same: 0 bits differ on {} tokens (control: in a deliberately "
      "wrong layout they differ, as they should)\n",
      labels.size(), labels.size() == 1 ? "" : "s", tokens);
}

}  // namespace

std::string verdict_text(const Verdict& verdict, bool every_tensor) {
  return bytes_text(verdict, every_tensor) + (verdict.forward.empty() ? "" : forward_text(verdict.forward));
}

namespace {

/// Some namings have two.
std::vector<std::string> keys_of(const NamingSummary& row) {
  constexpr std::string_view kOr = " or ";
  const std::size_t at = row.example.find(kOr);
  if (at == std::string::npos) return {row.example};
  return {row.example.substr(0, at), row.example.substr(at + kOr.size())};
}

}  // namespace

std::string layouts_text(const std::vector<NamingSummary>& rows) {
  constexpr std::size_t kWidth = 80, kIndent = 12;
  std::string text;
  const auto add = [&](std::string_view title, const std::vector<std::string>& words) {
    std::string line = fmt::format("  {:<{}}", title, kIndent - 2);
    std::string_view between;
    for (const std::string& word : words) {
      if (line.size() + between.size() + word.size() > kWidth - 1 && line.size() > kIndent) {
        text += line + (between.empty() ? "" : ",") + "\n";
        line.assign(kIndent, ' ');
        between = {};
      }
      line += fmt::format("{}{}", between, word);
      between = ", ";
    }
    text += line + "\n";
  };
  for (const NamingSummary& row : rows) {
    text += (text.empty() ? "" : "\n") + row.name + "\n";
    add("loads in", {row.loads_in});
    add("native", row.native);
    add("axes", {row.axes});
    add("keys", keys_of(row));
    if (!row.model_types.empty()) add("also hf:", row.model_types);
  }
  return text +
         "\nListed is the native form: what the program's own software stores. Every naming\n"
         "can be written with indexed or grouped experts and any order of gate and up.\n";
}

}  // namespace glu_ckpt::report
