#pragma once
/// An adapter's factors of routed experts as those of gate, up and down of each, however they are stored.

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "adapters/read_factors.hpp"
#include "core/kept.hpp"
#include "families/architecture.hpp"
#include "families/expert_keys.hpp"

namespace glu_ckpt {

/// The roles of an expert's matrices, in the order of ExpertLayer::experts.
inline constexpr auto kExpertRoles = std::to_array<Role>({Role::Gate, Role::Up, Role::Down});
std::size_t index_of(Role role);

/// The factors of gate, up or down of one expert.
struct ExpertFactors {
  Factors factors;
  double alpha = 0;
  std::optional<std::size_t> magnitudes = std::nullopt;
  /// Its name where it is a linear layer of its own.
  std::string name = {};
};

/// The routed experts of one layer.
struct ExpertLayer {
  /// "model.layers.3.": the text in front of the expert part.
  std::string prefix;
  std::map<i64, std::array<std::optional<ExpertFactors>, 3>> experts;

  bool has(Role role) const;
  const ExpertFactors* find(i64 expert, Role role) const;
};

/// Reads the elements of factors. Tensors in whose columns experts lie are read whole.
class FactorElements {
 public:
  explicit FactorElements(const Source& adapter) : adapter_(adapter), tensors_(adapter.inventory().tensors) {}

  /// The sums of the magnitudes in each row, or in each column: zero where all elements are, and not finite where one
  /// is not.
  std::vector<double> magnitudes(const Matrix& matrix, bool of_columns) const;
  /// Says of each rank whether its row of A and its column of B have a product that is not zero everywhere.
  std::vector<bool> live_ranks(const Factors& factors) const;
  bool are_equal(const Matrix& a, const Matrix& b) const;

 private:
  template <typename Use>
  bool for_each_row(const Matrix& matrix, const Use& use) const;

  /// Bytes of tensors that are kept whole.
  static constexpr i64 kKeptBytes = i64{128} << 20;
  const Source& adapter_;
  const std::vector<TensorRef>& tensors_;
  mutable Kept<KeptBytes> tensors_read_{kKeptBytes};
};

/// The modules of an adapter, those of routed experts by layer.
struct LogicalAdapter {
  std::map<std::string, ExpertLayer> layers;
  std::vector<AdaptedModule> plain;
  /// The hub's naming of the model, or of the adapter's own keys; null where nothing says it.
  const Naming* naming = nullptr;
};

/// The facts with which an adapter is read.
struct AdapterFacts {
  const AdapterConfig& config;
  /// The family's naming on the hub, and the model's sizes; null where nobody says what model it is.
  const Naming* naming = nullptr;
  const Architecture* architecture = nullptr;
};

/// Finds the experts of `modules`. Ranks of packed factors that are gate's alone, or up's, become theirs where
/// `parts_ranks`.
LogicalAdapter find_expert_factors(const FactorElements& elements, const std::vector<TensorRef>& tensors,
                                   const AdapterFacts& facts, const std::vector<AdaptedModule>& modules,
                                   bool parts_ranks);

/// Returns the text in front of a layer's number in the hub's keys.
std::string_view hub_layers(const Naming& naming);

/// Returns the alpha with which other ranks give the scale that `factors` have. Throws NotExact where none does.
double alpha_for(const AdapterConfig& config, double alpha, i64 ranks, i64 other_ranks, const Factors& factors,
                 const std::string& what, const std::string& tensor);

/// The spelling of the family's experts on the hub, whose modules an adapter names; that of the model's own where its
/// family has no map.
const Naming* hub_naming(const Recognition& model);

/// The spelling of packed experts, which transformers has in memory where the hub has none.
const Naming* packed_naming(const Naming& hub, const Architecture* architecture);

/// The order of gate and up, and the axes, in the packed form that transformers has of the family; `sizes` says that
/// there are none.
AdaptedModel adapted_model(const Naming* hub, const Architecture* architecture);

}  // namespace glu_ckpt
