#include "format/structure.hpp"

#include "format/pickle_graph.hpp"
#include "format/torch_archive.hpp"
#include "format/torch_tree.hpp"

namespace glu_ckpt {
namespace {

class MadeObjects final : public ObjectStore {
 public:
  explicit MadeObjects(std::vector<std::string> zips) : zips_(std::move(zips)) {}

  std::vector<std::byte> read(std::size_t number) const override {
    const auto bytes = std::as_bytes(std::span(zips_.at(number)));
    return {bytes.begin(), bytes.end()};
  }

 private:
  std::vector<std::string> zips_;
};

void drop(Structure& structure, const IsDropped& is_dropped) {
  std::erase_if(structure.objects, [&](const NamedObject& object) { return is_dropped(object.name); });
  std::erase_if(structure.paths, [&](const auto& entry) { return is_dropped(entry.first); });
  // A file of which nothing is left, Megatron's distrib_optim.pt, goes away.
  std::erase_if(structure.trees, [&](const TorchTree& tree) { return is_dropped(tree.prefix); });
  for (TorchTree& tree : structure.trees)
    tree = without_keys(tree, [&](const std::string& key) { return is_dropped(key + "."); });
}

void add_tree_objects(Structure& structure) {
  std::vector<std::string> zips;
  for (const TorchTree& tree : structure.trees) {
    PickleGraph graph(tree.pickle);
    const InputPart part = part_of(tree);
    const PickleRef root = read_pickle(graph, PickleNames::Torch, part);
    for (const TreeObject& object : objects_of_tree(graph, root, part)) {
      zips.push_back(print_object_zip(write_pickle(graph, object.node)));
      structure.objects.push_back({tree.prefix + object.name, std::ssize(zips.back()), nullptr, zips.size() - 1});
    }
  }
  const auto store = store_of(std::move(zips));
  for (NamedObject& object : structure.objects) object.store = store;
}

}  // namespace

std::shared_ptr<const ObjectStore> store_of(std::vector<std::string> zips) {
  return std::make_shared<const MadeObjects>(std::move(zips));
}

std::string_view to_string(Format format) {
  switch (format) {
    case Format::Safetensors: return "safetensors";
    case Format::Torch: return "torch";
    case Format::TorchDist: return "torch-dist";
  }
  return {};
}

Structure structure_for(Structure structure, Format target, const IsDropped& is_dropped) {
  if (is_dropped) drop(structure, is_dropped);
  if (target == Format::TorchDist && structure.objects.empty()) add_tree_objects(structure);
  return structure;
}

}  // namespace glu_ckpt
