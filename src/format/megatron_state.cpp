#include "format/megatron_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "format/pickle_writer.hpp"
#include "format/torch_archive.hpp"

namespace glu_ckpt {
namespace {

/// A store that has the same bytes under many names.
class OneObject final : public ObjectStore {
 public:
  explicit OneObject(std::string zip) : zip_(std::move(zip)) {}
  std::vector<std::byte> read(std::size_t) const override {
    const auto bytes = std::as_bytes(std::span(zip_));
    return {bytes.begin(), bytes.end()};
  }

 private:
  std::string zip_;
};

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

}  // namespace

std::string print_common_state() {
  constexpr double kCheckpointVersion = 3.0;
  PickleGraph graph;
  const PickleRef metadata = add_dict(
      graph, {{"singleton_local_shards", graph.add_bool(false)}, {"non_homogeneous_layers", graph.add_bool(true)}});
  const PickleRef root = add_dict(graph, {{"checkpoint_version", graph.add_float(kCheckpointVersion)},
                                          {"iteration", graph.add_int(0)},
                                          {"content_metadata", metadata}});
  return print_object_zip(write_pickle(graph, root));
}

std::vector<NamedObject> extra_states(const std::vector<OutputTensor>& tensors) {
  PickleGraph graph;
  const PickleRef none = graph.add_none();
  std::string zip = print_object_zip(write_pickle(graph, graph.add_container(PickleKind::List, {&none, 1})));
  const i64 bytes = std::ssize(zip);
  const auto store = std::make_shared<const OneObject>(std::move(zip));
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
    if (module.find(".experts.experts.") == module.npos) {
      names.insert(module + "._extra_state/shard_0_1");
      continue;
    }
    const i64 experts = tensor.shape.empty() ? 0 : tensor.shape.front();
    for (i64 expert = 0; expert < experts; ++expert)
      names.insert(fmt::format("{}._extra_state/shard_{}_{}", module, expert, experts));
  }
  std::vector<NamedObject> objects;
  objects.reserve(names.size());
  for (const std::string& name : names) objects.push_back({name, bytes, store, 0});
  return objects;
}

}  // namespace glu_ckpt
