#pragma once
/// Reads which pairs of factors an adapter has, what each is for, and where its elements are.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/adapter_config.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// The text with which PEFT begins names of tensors, in front of the module's name in the model.
inline constexpr std::string_view kAdaptedModel = "base_model.model.";
/// The end of keys of linear layers.
inline constexpr std::string_view kWeightEnd = ".weight";

/// The factors A [rank, in] and B [out, rank] of one matrix, and where they are in tensors of the adapter: of packed
/// experts, row e * rank + j of A's tensor [E * rank, in] and column j * E + e of B's [out, E * rank] (PEFT's two
/// orders).
struct Factors {
  std::size_t a = 0;
  std::size_t b = 0;
  Dtype dtype_a = Dtype::F32;
  Dtype dtype_b = Dtype::F32;
  i64 rank = 0;
  i64 inputs = 0;
  i64 outputs = 0;
  i64 expert = 0;
  i64 experts = 1;
  /// PEFT before 0.19 took the axes of packed experts for one another: A's tensor is that of B turned, and B's of A.
  bool is_turned = false;
  /// Unsloth's older files have column e * rank + j of B's tensor.
  bool is_by_expert = false;
  /// B is of each expert by itself, [E, out, rank].
  bool is_expert_first = false;
  /// Both have their axes turned, as AutoModel has experts in memory: A [E, in, rank], B [E, rank, out].
  bool is_in_out = false;
  /// One A, or one B, serves all experts.
  bool shares_a = false;
  bool shares_b = false;
  /// The row of B for a row of gate or of up, where B is for both: as Placement counts stored rows. Rows for themselves
  /// else.
  i64 first_row = 0;
  i64 block_rows = 0;
  /// The ranks that count, of those that are stored; 0: all.
  i64 first_rank = 0;
  i64 used_ranks = 0;
  /// The number by which B A is multiplied.
  float scale = 1;

  i64 ranks() const { return used_ranks == 0 ? rank : used_ranks; }
  /// The dtypes of the elements of A and of B. Factors that are turned have A in the tensor of B, and B in that of A.
  Dtype stored_dtype_a() const { return is_turned ? dtype_b : dtype_a; }
  Dtype stored_dtype_b() const { return is_turned ? dtype_a : dtype_b; }
};

/// Return where A [rank, in] and B [out, rank] are stored; their role and kind mean nothing.
Matrix matrix_of_a(const Factors& factors);
Matrix matrix_of_b(const Factors& factors);

/// The words of Megatron-Bridge's adapters.
inline constexpr std::string_view kMegatronExperts = "mlp.experts.linear_fc", kMegatronLayers = "decoder.layers.",
                                  kMegatronIn = ".adapter.linear_in", kMegatronOut = ".adapter.linear_out";
/// Its CanonicalLoRA has a pair for gate and one for up: "linear_fc1.adapter.adapter_gate.linear_in".
inline constexpr std::string_view kMegatronGate = ".adapter.adapter_gate", kMegatronUp = ".adapter.adapter_up";

/// The factors of one expert's gate, up or down among those of packed experts.
Factors factors_of(const Factors& packed, i64 expert, Role role);

/// The matrix that a pair of factors changes.
struct AdaptedModule {
  /// A linear layer, "model.layers.3.self_attn.q_proj", a parameter of packed experts, "....mlp.experts.down_proj", or
  /// Megatron's module of them, "decoder.layers.3.mlp.experts.linear_fc1".
  std::string name;
  /// Gate, Up, GateUp or Down of packed experts, where the factors are those of all of them; none for a linear layer.
  std::optional<Role> packed;
  Factors factors;
  /// The tensor of DoRA's magnitudes, one for each output.
  std::optional<std::size_t> magnitudes = std::nullopt;

  /// Returns whether the factors of packed experts are for that part of an expert.
  bool is_for(Role role) const {
    return packed == role || (packed == Role::GateUp && (role == Role::Gate || role == Role::Up));
  }
};

/// The sizes of packed experts.
struct PackedSizes {
  i64 experts = 0;
  i64 hidden = 0;
  i64 intermediate = 0;
};

/// The facts about an adapter's model that reading its factors needs.
struct AdaptedModel {
  /// The sizes of "model.layers.3.mlp.experts"; none where the model has no packed experts with gate and up there.
  std::function<std::optional<PackedSizes>(const std::string& module)> sizes;
  /// Returns whether a module of that name is a linear layer, whatever its name says.
  std::function<bool(const std::string& module)> is_linear;
  /// The order of the rows of gate and up in the packed form, and the axes of its weights.
  Glu packed_order = {};
  Axes axes = Axes::OutIn;
};

/// How the files of packed experts were written, where shapes do not tell.
enum class PackedFiles {
  /// As PEFT does: shapes tell the axes.
  Told,
  Peft018,
  Peft019,
  /// By Unsloth, with the columns of B by expert.
  ByExpert,
};
/// "peft-0.18", "peft-0.19", "by-expert".
std::vector<std::string> packed_files_words();
/// The word for files that a program reads now where it is not said.
std::string packed_files_word(PackedFiles files);
PackedFiles parse_packed_files(const std::string& word);

/// Returns the pairs of factors in order of their modules' names. Throws PartMissing for half of a pair, UnknownTensor,
/// SizeMismatch, UnknownGlu, and NotSupported for what is no factor, and for packed experts of which shapes do not tell
/// what they are for.
std::vector<AdaptedModule> read_factors(const Inventory& adapter, const AdapterConfig& config,
                                        const AdaptedModel& model, PackedFiles files);

}  // namespace glu_ckpt
