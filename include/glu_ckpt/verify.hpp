#pragma once
/// Digests, and whether two checkpoints in whatever layouts hold the same model.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/diff.hpp"
#include "glu_ckpt/digest.hpp"
#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/model.hpp"
#include "glu_ckpt/ops/grouped_mlp.hpp"
#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt {

/// Reads every tensor byte once. The order of gate and up rows must be known, or FC1 is hashed whole.
Digest compute_digest(const Model& model, const Backend& backend, const ExecuteOptions& options);

/// The first element that differs, in the order layer, set, expert, role, row, column.
struct Difference {
  /// "model", or which of the optimizer's states.
  std::string state;
  std::string layer;
  std::string set;
  i64 expert = 0;
  std::string role;
  std::string kind;
  /// Name of A's tensor.
  std::string tensor;
  i64 row = 0;
  i64 column = 0;
  /// The attention head that the row belongs to; -1 where rows are not heads'.
  i64 head = -1;
  /// Element bits as hexadecimal, e.g. "0x3f80".
  std::string a;
  std::string b;
  /// The numbers that they are, e.g. "1"; empty where the dtype has none.
  std::string number_a = {};
  std::string number_b = {};
  /// The likely cause of the difference ("gate and up are swapped"), or empty.
  std::string hint;
};

/// The findings of running the experts of one layer, routed or shared, of A and of B on the same tokens.
struct LayerForward {
  std::string layer;
  std::string set;
  /// Says why the two could not be run side by side: sizes or dtypes differ, or one lacks the layer. Then all else is
  /// empty.
  std::string fault;
  i64 tokens = 0;
  /// Bits of the outputs that differ; NaNs are bits like others.
  i64 differing_bits = 0;
  /// The largest |a - b| and |a - b| / |a|, as DiffStats counts them.
  double max_abs = 0;
  double max_rel = 0;
  /// The first expert whose outputs differ, and how many do.
  i64 first_expert = -1;
  i64 differing_experts = 0;
  /// max_abs of each expert.
  std::vector<double> expert_max_abs = {};
  /// B's weights, taken for another layout than theirs, gave other bits.
  bool control_caught = false;

  bool ok() const { return fault.empty() && differing_bits == 0 && control_caught; }
};

/// One sentence about what running this layer's experts showed.
std::string to_sentence(const LayerForward& layer);

/// The part of two models that is compared: all, or matrices and tensors that the same answers choose again.
struct VerifySubset {
  /// Labels of layers and ranges of numbers, "3,5-7,mtp.0": all that is known to be in them. Empty: everything.
  std::string layers = {};
  /// Percent of the matrices and tensors that `seed` draws, rounded up; more than 0.
  double percent = 100;
  u64 seed = 0;
  /// The share of what is chosen so far: number `part` of `parts`, counted from 1. All shares together are all of it.
  i64 part = 1;
  i64 parts = 1;

  bool is_all() const { return layers.empty() && percent >= 100 && parts == 1; }
};

/// The findings of verify. Differences are values, not failures.
struct Verdict {
  bool equal = false;
  Digest a;
  Digest b;
  /// Matrices and tensors of A that B lacks, and the other way round.
  std::vector<std::string> missing;
  std::vector<std::string> extra;
  std::optional<Difference> first_difference;
  /// Matrices and tensors that both have and that differ.
  i64 differing = 0;
  /// Matrices and tensors that both have, and how many of them were compared; fewer where a subset was asked for. Then
  /// the digests are of what was read.
  i64 in_both = 0;
  i64 compared = 0;
  /// The tensors have the same names, dtypes, shapes and bytes.
  bool same_layout = false;
  /// The answers decode, encode or change tensors otherwise: same_layout is about what they make of the files.
  bool is_as_answered = false;
  /// Tensors that differ in bytes that are no part of the model, such as rows of padding behind the vocabulary, which
  /// no digest counts. Compared where the models are equal and have the same names, shapes and order of rows.
  std::vector<std::string> differing_padding = {};
  /// The layers, where the experts were run too; `equal` is false unless each is ok().
  std::vector<LayerForward> forward;
  /// The figures of the differences; filled where checkpoints are compared by their paths, and differ. Its `configs`
  /// are those of equal ones, too.
  Diff differences;
};

/// Compares bytes, of `subset` alone; what one side lacks is told of all layers that are in it. Throws Usage,
/// LayerMissing.
Verdict verify(const Model& a, const Model& b, const Backend& backend, const ExecuteOptions& options,
               const VerifySubset& subset = {});

/// Bytes that verify() will read.
i64 verify_bytes(const Model& a, const Model& b, const VerifySubset& subset = {});

/// The options of verify(): how it takes its two checkpoints, and how far it goes.
struct VerifyOptions {
  /// The caller knows this about A and B.
  SourceAnswers a;
  SourceAnswers b{.option_prefix = "--to-"};
  VerifySubset subset;
  /// Runs the experts of both on the same tokens, too: no bit may differ.
  bool forward = false;
  ExpertCompute compute;
};

/// Finds whether two checkpoints hold the same model, in whatever layouts, namings and formats. Where everything is
/// compared the checksums that the files hold are checked, too. Throws UnknownGlu, Usage, LayerMissing, GluConflict,
/// errors of the files, Interrupted.
Verdict verify(const std::filesystem::path& path_a, const std::filesystem::path& path_b,
               const VerifyOptions& options = {}, const RunOptions& run = {});

struct CheckpointDigest {
  Digest digest;
  /// The one that the checkpoint's own record says; empty where it says none.
  std::string recorded;
  /// The text of its config.json; empty where there is none.
  std::string config;

  bool contradicts_record() const { return !recorded.empty() && recorded != to_string(digest); }
};

/// One fingerprint, the same for every layout of the same weights. Reads everything. Throws UnknownGlu where the order
/// of gate and up is unknown, GluConflict, errors of the files, Interrupted.
CheckpointDigest digest(const std::filesystem::path& path, const SourceAnswers& answers = {},
                        const RunOptions& run = {});

}  // namespace glu_ckpt
