#pragma once
/// A checkpoint together with what was recognized in it: how every other call sees a path.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// A source and what was recognized in it, owned by somebody else.
struct Model {
  const Source* source = nullptr;
  const Recognition* recognition = nullptr;
};

/// A checkpoint that was opened and recognized.
struct Checkpoint {
  std::unique_ptr<Source> source;
  Recognition recognition;
  /// The hints by which it was recognized: the source's, or those of a config.json that the caller named.
  ModelHints hints;

  Model model() const { return {source.get(), &recognition}; }
};

/// Opens and recognizes; reads headers only. `answers` are what the caller knows and the files do not say. Throws what
/// open_source() and recognize() throw, with the file and the byte at fault where there is one.
Checkpoint open_checkpoint(const std::filesystem::path& path, const SourceAnswers& answers = {});

/// The names that SourceAnswers::decode_as, encode, encode_as, merge_as and from_lora take.
std::vector<std::string> decoder_names();
std::vector<std::string> encoder_words();
std::vector<std::string> encoder_programs();
std::vector<std::string> merge_programs();
std::vector<std::string> lora_file_words();

/// The roles of matrices, "attention/q", as inspect and diff print them and rules of SourceAnswers::dtypes take them.
std::vector<std::string> role_names();

/// The findings of `inspect`.
/// How large the model is. What nobody says is 0, empty or absent.
struct ModelSize {
  /// Numbers in the tensors, without those of an optimizer; quantized weights count as what they decode to. This number
  /// and the next count multi-token prediction.
  std::optional<i64> parameters;
  /// Without the routed experts that a token does not reach.
  std::optional<i64> active_parameters;
  i64 layers = 0;
  i64 experts_per_token = 0;
  i64 vocabulary = 0;
  i64 context = 0;
  i64 hidden = 0;
  /// The width of a dense MLP.
  i64 dense_width = 0;
  i64 heads = 0;
  i64 kv_heads = 0;
  /// "grouped-query", "multi-head latent", or how many layers of each kind.
  std::string attention;
  /// The head is the embedding.
  bool tied = false;
};

/// The facts of an adapter (LoRA) by itself.
struct AdapterSummary {
  /// The class of the model that it is for, and its name or path; empty where the adapter does not say.
  std::string base_class = {};
  std::string base_name = {};
  /// Each rank once, and each lora_alpha; `alpha` is the one that counts where no pattern says another.
  std::vector<i64> ranks = {};
  double alpha = 0;
  std::vector<double> alphas = {};
  /// The least and the greatest number by which a product of factors is multiplied; equal where there is one. 0 where
  /// nobody says which modules there are.
  double least_scale = 0;
  double greatest_scale = 0;
  bool rank_stabilized = false;
  bool is_dora = false;
  /// The last words of the modules' names, or parameters of packed experts.
  std::vector<std::string> targets = {};
  /// Pairs of factors.
  i64 expert_modules = 0;
  i64 other_modules = 0;
};

struct Inspection {
  std::unique_ptr<Source> source;
  /// Absent where recognition failed: `fault` then says why, unless the weights are quantized and all that is wrong is
  /// how codes lie, which decoding mends.
  std::optional<Recognition> recognition;
  std::optional<Error> fault;
  LoadsIn loads_in = {};
  /// Formats of quantized weights: "FP8 in 128x128 blocks". Empty also where they are seen as what they decode to.
  std::vector<std::string> quantized;
  /// The parts of the model that hold such weights: "attention", "routed experts"; empty where it cannot be told.
  std::vector<std::string> quantized_parts = {};
  /// Their scales: "F32, one for 128 x 128 weights".
  std::vector<std::string> scales = {};
  /// Sentences; the fault's is among them.
  std::vector<std::string> problems;
  /// Sentences about what may load and compute something else.
  std::vector<std::string> warnings = {};
  ModelSize size = {};
  std::optional<AdapterSummary> adapter = std::nullopt;
};

/// Opens `path` and says what it is; reads headers only. A layout that is not recognized is a finding. Throws what
/// open_source() throws.
Inspection inspect(const std::filesystem::path& path, const SourceAnswers& answers = {});

/// A stored tensor, and what of the model it holds.
struct ListedTensor {
  /// Index into the inventory.
  std::size_t tensor = 0;
  /// "layer 3 routed experts 0-63 gate and up weight", "copy of head", "vision"; empty for what no map knows.
  std::string matrix;
};

/// The tensors whose name, or whose `matrix`, fits a pattern with *, ? and [...]; all of them where it is empty. In the
/// inventory's order.
std::vector<ListedTensor> list_tensors(const Inspection& inspection, const std::string& pattern = {});

/// The contents of one layer, without the optimizer's states.
struct LayerContent {
  /// "3", "mtp.0"; empty for what is in no layer: embedding, head, tensors that no map knows.
  std::string layer;
  /// Routed ones; 0 in a dense layer.
  i64 num_experts = 0;
  i64 expert_bytes = 0;
  i64 shared_bytes = 0;
  i64 other_bytes = 0;
  /// What sees, hears or talks beside a language model, by part ("vision"). It counts in other_bytes, too.
  std::map<std::string, i64> beside_bytes = {};
};
std::vector<LayerContent> layer_contents(const Inspection& inspection);

/// The entries that `stamp` recorded, or would.
struct Stamped {
  /// The file that is written: the checkpoint itself, or its glu_ckpt.json.
  std::filesystem::path file;
  /// "no naming" where the keys fit several.
  std::string naming;
  std::string experts;
  std::string glu;
  /// Sentences about the checkpoint's files that somebody should know who trusts the stamp.
  std::vector<std::string> warnings = {};
  /// The orders of the shared expert and of the optimizer's states; empty without them.
  std::string shared_glu = {};
  std::string optimizer_glu = {};
};

enum class StampMode { Write, DryRun };

/// Records in the checkpoint itself a layout that the caller knows and the files do not say: at least one of glu,
/// shared_glu and optimizer_glu. Tensor bytes stay untouched. Throws Usage, NoExperts, what open_checkpoint() throws
/// where an answer contradicts the files, Io, NoSpace.
Stamped stamp(const std::filesystem::path& path, const SourceAnswers& answers, StampMode mode = StampMode::Write);

/// Takes the layout out of a checkpoint's record: naming, experts and the orders of gate and up. What else the record
/// says stays; a glu_ckpt.json that says nothing else goes. Tensor bytes stay untouched. Returns the file, and whether
/// there was such a record.
struct Unstamped {
  std::filesystem::path file;
  bool was_there = false;
};
Unstamped unstamp(const std::filesystem::path& path, StampMode mode = StampMode::Write);

}  // namespace glu_ckpt
