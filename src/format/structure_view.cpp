#include "format/structure_view.hpp"

#include <cstring>

#include "format/pickle_reader.hpp"
#include "format/pickle_writer.hpp"
#include "format/torch_archive.hpp"
#include "format/torch_tree.hpp"

namespace glu_ckpt {

StructureView::StructureView(const Source& source, Format target, const IsDropped& is_dropped)
    : source_(source), structure_(source.structure()) {
  for (std::size_t i = 0; i < structure_.objects.size(); ++i) origins_.push_back({i, {}});
  if (is_dropped) drop(is_dropped);
  if (target == Format::TorchDist && structure_.objects.empty()) add_tree_objects();
}

void StructureView::drop(const IsDropped& is_dropped) {
  std::vector<NamedObject> objects;
  std::vector<Origin> origins;
  for (std::size_t i = 0; i < structure_.objects.size(); ++i)
    if (!is_dropped(structure_.objects[i].name)) {
      objects.push_back(structure_.objects[i]);
      origins.push_back(std::move(origins_[i]));
    }
  structure_.objects = std::move(objects);
  origins_ = std::move(origins);
  std::erase_if(structure_.paths, [&](const auto& entry) { return is_dropped(entry.first); });
  // A file of which nothing is left, Megatron's distrib_optim.pt, goes away.
  std::erase_if(structure_.trees, [&](const TorchTree& tree) { return is_dropped(tree.prefix); });
  for (TorchTree& tree : structure_.trees)
    tree = without_keys(tree, [&](const std::string& key) { return is_dropped(key + "."); });
}

void StructureView::add_tree_objects() {
  for (const TorchTree& tree : structure_.trees) {
    PickleGraph graph(tree.pickle);
    const InputPart part = part_of(tree);
    const PickleRef root = read_pickle(graph, PickleNames::Torch, part);
    for (const TreeObject& object : objects_of_tree(graph, root, part)) {
      std::string bytes = print_object_zip(write_pickle(graph, object.node));
      structure_.objects.push_back({tree.prefix + object.name, static_cast<i64>(bytes.size())});
      origins_.push_back({0, std::move(bytes)});
    }
  }
}

std::vector<std::byte> StructureView::read_object(std::size_t object) const {
  const Origin& origin = origins_.at(object);
  if (origin.bytes.empty()) return source_.read_object(origin.object);
  std::vector<std::byte> bytes(origin.bytes.size());
  std::memcpy(bytes.data(), origin.bytes.data(), bytes.size());
  return bytes;
}

}  // namespace glu_ckpt
