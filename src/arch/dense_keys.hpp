#pragma once
/// Keys of the tensors outside of the experts, taken apart by one naming.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arch/dense_table.hpp"

namespace glu_ckpt {

/// A key, taken apart.
struct DenseKey {
  const DenseRow* row = nullptr;
  TensorKind kind = TensorKind::Weight;
  /// "decoder", "mtp", or empty for what is in no layer.
  std::string_view stack;
  i64 layer = 0;
  /// One tensor has all layers, along a leading axis.
  bool stacked = false;
};

class DenseKeys {
 public:
  /// Keys of `naming` behind `root`. Keeps references to both, and to the architecture.
  DenseKeys(const DenseNaming& naming, std::string root, const Architecture& architecture);

  /// Returns nothing where the naming has no such key, or not in a layer of that kind.
  std::optional<DenseKey> parse(std::string_view name) const;

 private:
  struct Entry {
    const DenseRow* row;
    TensorKind kind;
  };
  /// One way to spell the layers of a stack: `before`, a number, `after`.
  struct Prefix {
    std::string before;
    std::string after;
    std::string_view stack;
    Place place;
  };
  using Entries = std::multimap<std::string, Entry, std::less<>>;

  void add_prefix(std::string_view before, std::string_view after, std::string_view stack, Place place);
  void add_outer(std::string_view outer);
  /// `tail` begins with the number of the layer inside of that step of multi-token prediction, or has none.
  std::optional<DenseKey> parse_nested(const Prefix& prefix, i64 step, std::string_view tail) const;
  std::optional<DenseKey> parse_layer(const Prefix& prefix, std::string_view name) const;
  std::optional<DenseKey> find(const Entries& entries, std::string_view tail, std::string_view stack, i64 layer,
                               bool stacked) const;

  const DenseNaming& naming_;
  std::string root_;
  const Architecture& architecture_;
  Entries model_;
  Entries layer_;
  Entries mtp_;
  std::vector<Prefix> prefixes_;
};

}  // namespace glu_ckpt
