#include "format/megatron_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "format/pickle_graph.hpp"
#include "format/structure.hpp"
#include "format/torch_archive.hpp"

namespace glu_ckpt {
namespace {

constexpr std::array<i64, 1> kOneShard = {1};

PickleRef add_dict(PickleGraph& graph, const std::vector<std::pair<std::string, PickleRef>>& entries) {
  std::vector<PickleRef> items;
  for (const auto& [key, value] : entries) {
    items.push_back(graph.add_string(key));
    items.push_back(value);
  }
  return graph.add_container(PickleKind::Dict, items);
}

/// The module whose parameter a key is; empty where it is a parameter of no module of TransformerEngine.
std::string module_of(const std::string& key) {
  static constexpr std::array<std::string_view, 6> kParameters = {".weight",       ".bias",     ".layer_norm_weight",
                                                                  ".weight.query", ".weight.z", ".softmax_offset"};
  static constexpr std::array<std::string_view, 5> kOthers = {".router", ".word_embeddings", "output_layer", ".conv1d",
                                                              ".mixer.norm"};
  for (const std::string_view parameter : kParameters) {
    if (!key.ends_with(parameter)) continue;
    std::string module = key.substr(0, key.size() - parameter.size());
    const auto is_other = [&](std::string_view other) { return module.ends_with(other); };
    return std::ranges::any_of(kOthers, is_other) ? std::string() : module;
  }
  return {};
}

/// Returns whether it is a key of a module, or of its parameter, that all layers share.
bool is_stacked(std::string_view key) {
  constexpr std::string_view kStack = "decoder.layers.";
  return key.size() > kStack.size() && key.starts_with(kStack) &&
         (key[kStack.size()] < '0' || key[kStack.size()] > '9');
}

i64 extent(const OutputTensor& tensor, i64 axis) {
  return axis < std::ssize(tensor.shape) ? tensor.shape[static_cast<std::size_t>(axis)] : 0;
}

/// Adds an entry for each position of these axes, such as "M._extra_state/shard_1.5_2.8".
void add_shards(const std::string& module, std::span<const i64> axes, std::set<std::string>& names) {
  if (axes.empty()) axes = kOneShard;
  i64 count = 1;
  for (const i64 axis : axes) count *= axis;
  for (i64 shard = 0; shard < count; ++shard) {
    std::vector<i64> position(axes.size());
    i64 left = shard;
    for (std::size_t axis = axes.size(); axis-- > 0; left /= axes[axis]) position[axis] = left % axes[axis];
    names.insert(fmt::format("{}._extra_state/shard_{}_{}", module, fmt::join(position, "."), fmt::join(axes, ".")));
  }
}

/// The value of `--name VALUE` on a line of its own; empty where it is not there.
std::string value_of(std::string_view args, std::string_view name) {
  const std::string option = fmt::format("--{} ", name);
  for (std::size_t begin = 0; begin < args.size();) {
    const std::size_t end = std::min(args.find('\n', begin), args.size());
    const std::string_view line = args.substr(begin, end - begin);
    if (line.starts_with(option)) return std::string(line.substr(option.size()));
    begin = end + 1;
  }
  return {};
}

/// The arguments without which Megatron-LM takes a checkpoint for a GPTModel's and does not load it into a HybridModel,
/// and those that it then compares.
std::optional<PickleRef> hybrid_args(PickleGraph& graph, std::string_view args) {
  const std::string pattern = value_of(args, "hybrid-layer-pattern");
  if (pattern.empty()) return std::nullopt;
  std::vector<std::pair<std::string, PickleRef>> fields = {{"hybrid_layer_pattern", graph.add_string(pattern)}};
  for (const auto& [field, option] : {std::pair("num_layers", "num-layers"), std::pair("hidden_size", "hidden-size"),
                                      std::pair("num_attention_heads", "num-attention-heads")})
    fields.emplace_back(field, graph.add_int(std::stoll(value_of(args, option))));
  const PickleRef node = graph.add_call(graph.add_global("argparse", "Namespace"), graph.add_tuple({}));
  graph.add_state(node, add_dict(graph, fields));
  return node;
}

}  // namespace

std::string print_common_state(const std::string& args, bool stacked) {
  constexpr double kCheckpointVersion = 3.0;
  PickleGraph graph;
  const PickleRef metadata = add_dict(
      graph, {{"singleton_local_shards", graph.add_bool(false)}, {"non_homogeneous_layers", graph.add_bool(!stacked)}});
  std::vector<std::pair<std::string, PickleRef>> entries = {{"checkpoint_version", graph.add_float(kCheckpointVersion)},
                                                            {"iteration", graph.add_int(0)},
                                                            {"content_metadata", metadata}};
  if (const auto namespace_of = hybrid_args(graph, args)) entries.emplace_back("args", *namespace_of);
  const PickleRef root = add_dict(graph, entries);
  return print_object_zip(write_pickle(graph, root));
}

bool stacks_layers(const std::vector<OutputTensor>& tensors) {
  return std::ranges::any_of(tensors, [](const OutputTensor& tensor) { return is_stacked(tensor.name); });
}

std::vector<NamedObject> extra_states(const std::vector<OutputTensor>& tensors) {
  PickleGraph graph;
  const PickleRef none = graph.add_none();
  std::string zip = print_object_zip(write_pickle(graph, graph.add_container(PickleKind::List, {&none, 1})));
  const i64 bytes = std::ssize(zip);
  const auto store = store_of({std::move(zip)});
  std::set<std::string> names;
  // A HybridModel asks for the head's entry, a GPTModel leaves it out.
  const auto has = [&](std::string_view name) {
    return std::ranges::find(tensors, name, &OutputTensor::name) != tensors.end();
  };
  if (has("decoder.final_norm.weight") && has("output_layer.weight"))
    names.insert("output_layer._extra_state/shard_0_1");
  for (const OutputTensor& tensor : tensors) {
    if (tensor.name.starts_with(kUnknownPrefix)) continue;
    const std::string module = module_of(tensor.name);
    if (module.empty()) continue;
    std::vector<i64> axes;
    if (is_stacked(module)) axes.push_back(extent(tensor, 0));
    if (module.find(".experts.experts.") != module.npos) axes.push_back(extent(tensor, std::ssize(axes)));
    add_shards(module, axes, names);
  }
  std::vector<NamedObject> objects;
  objects.reserve(names.size());
  for (const std::string& name : names) objects.push_back({name, bytes, store, 0});
  return objects;
}

}  // namespace glu_ckpt
