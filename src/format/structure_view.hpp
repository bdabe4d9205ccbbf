#pragma once
/// A Source as a Sink of another format is to see it: the same tensors, objects as that format has them.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Whether an object or tensor of this name is left out.
using IsDropped = std::function<bool(std::string_view name)>;

/// Tensors, files and metadata are the source's own. `target` torch-dist turns the objects of torch files
/// into entries; objects for which `is_dropped` holds go, as the tensors of the plan did.
class StructureView final : public Source {
 public:
  StructureView(const Source& source, Format target, const IsDropped& is_dropped);

  Format format() const override { return source_.format(); }
  const Inventory& inventory() const override { return source_.inventory(); }
  const ModelHints& hints() const override { return source_.hints(); }
  const Record& record() const override { return source_.record(); }
  const std::map<std::string, std::string>& metadata() const override { return source_.metadata(); }
  const std::vector<ExtraFile>& extra_files() const override { return source_.extra_files(); }
  const std::filesystem::path& path() const override { return source_.path(); }
  i64 file_bytes() const override { return source_.file_bytes(); }
  void read(std::size_t tensor, i64 offset, std::span<std::byte> out) const override {
    source_.read(tensor, offset, out);
  }
  const Structure& structure() const override { return structure_; }
  std::vector<std::byte> read_object(std::size_t object) const override;

 private:
  void drop(const IsDropped& is_dropped);
  void add_tree_objects();

  const Source& source_;
  Structure structure_;
  /// For each object: its number in the source, or else its bytes.
  struct Origin {
    std::size_t object = 0;
    std::string bytes;
  };
  std::vector<Origin> origins_;
};

}  // namespace glu_ckpt
