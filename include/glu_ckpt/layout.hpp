#pragma once
/// Layouts: how a family names, groups and orients its experts, and which one a checkpoint uses.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/record.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Indexed: one tensor per expert. Grouped: one tensor with a leading expert axis.
enum class Experts { Indexed, Grouped };

/// The arrangement of the gate and up rows of FC1. The gate comes first.
struct Glu {
  enum class Kind {
    /// Gate and up are two tensors.
    Split,
    /// [gate; up], F rows each.
    Contiguous,
    /// `block_rows` gate rows, `block_rows` up rows, and so on (TransformerEngine's
    /// glu_interleave_size).
    Interleaved,
    /// Fused, and nothing says in which order. Only moves that keep FC1 whole are possible.
    Unknown,
    /// FC1 has no gate (Nemotron's squared ReLU).
    None,
  };
  Kind kind = Kind::Unknown;
  /// Rows of one block, for Interleaved only.
  i64 block_rows = 0;
  bool operator==(const Glu&) const = default;
};

/// "split", "contiguous", "interleaved:32", "unknown", "none".
std::string to_string(const Glu& glu);
std::string_view to_string(Experts experts);
/// Parses what a person may ask for: split, contiguous, interleaved (= interleaved:32),
/// interleaved:K with K >= 1. Throws Usage.
Glu parse_glu(std::string_view text);
Experts parse_experts(std::string_view text);

enum class ExpertSet { Routed, Shared };
enum class Role { Gate, Up, Down, GateUp };
/// The kinds of tensors that belong to a matrix. Each has a word in the keys of a linear layer, and a suffix where the
/// matrix is a parameter by itself (src/layout/tensor_kinds.hpp has both).
enum class TensorKind : std::uint8_t {
  /// The weight, as numbers or as codes.
  Weight,
  /// [out].
  Bias,
  /// Scales of blocks: `weight_scale_inv`. A weight is worth its value times its block's scale.
  Scale,
  /// `weight_scale`: scales of blocks, rows or matrices.
  PlainScale,
  /// Codes, several in a byte or word: `weight_packed` (compressed-tensors), `blocks` (gpt-oss), `qweight` (AWQ, GPTQ).
  PackedWeight,
  Blocks,
  QWeight,
  /// `scales`, of gpt-oss, AWQ and GPTQ.
  Scales,
  /// A second scale of a whole matrix: `weight_scale_2` (ModelOpt), `weight_global_scale` (compressed-tensors).
  SecondScale,
  GlobalScale,
  /// The scales of what is multiplied with the weight.
  InputScale,
  InputGlobalScale,
  /// The codes that stand for zero: `weight_zero_point` (compressed-tensors), `qzeros` (AWQ, GPTQ).
  ZeroPoint,
  QZeros,
  /// `g_idx`: the group of each column.
  GroupIndex,
  /// `weight_shape`: rows and columns of what is packed.
  WeightShape,
  /// `weight_g_idx`: the same as `g_idx`, of compressed-tensors.
  PackedGroupIndex,
};
inline constexpr std::size_t kTensorKinds = 17;
constexpr bool is_weight(TensorKind kind) {
  return kind == TensorKind::Weight || kind == TensorKind::PackedWeight || kind == TensorKind::Blocks ||
         kind == TensorKind::QWeight;
}
/// Returns whether the tensor says how to read the codes beside it.
constexpr bool is_scale(TensorKind kind) { return !is_weight(kind) && kind != TensorKind::Bias; }

std::string_view to_string(ExpertSet set);
std::string_view to_string(Role role);
std::string_view to_string(TensorKind kind);

/// Orientation of a stored matrix: OutIn is nn.Linear's [out, in]; InOut the transpose, used as x @ W.
enum class Axes { OutIn, InOut };

/// The place of rows of one logical matrix [rows = out, cols = in] inside one stored tensor. Bytes from the
/// tensor's first byte of element (r, c):
///   offset + (r / block_rows) * block_step + (r % block_rows) * row_step + c * col_step
/// A `paired` block, such as a head of torchtitan's Llama, stores row j of its first half beside row j of its second
/// half: row j of the block is stored as row 2 (j % half) + j / half.
struct Placement {
  i64 offset = 0;
  i64 block_rows = 1;
  i64 block_step = 0;
  i64 row_step = 0;
  i64 col_step = 0;
  bool paired = false;
};

/// Says which weights one stored element stands for, and in which form the elements are stored: codes that share a byte
/// or a word, scales of blocks, rows or matrices. The least multiples are more than 1 where the stored matrix is
/// padded; what its padding holds means nothing. Small, for there is one with each matrix of a checkpoint.
struct ElementGrid {
  /// Weights of one element; 0: all rows, or all columns, of the matrix. 1 x 1 for weights by themselves.
  std::uint16_t rows = 1;
  std::uint16_t cols = 1;
  std::uint8_t row_multiple = 1;
  std::uint8_t col_multiple = 1;
  /// Elements in place of one: 2 in a `weight_shape`.
  std::uint8_t values = 1;
  /// One element may be for all columns. This says whether an axis of one element is stored for them ([N, 1], [1]), or
  /// none ([N], []).
  bool keeps_axis = true;
  /// An axis of one element is stored behind each of the two: [n, 1, k, 1], as ModelOpt writes scales of blocks.
  bool has_unit_axes = false;
  /// Gate and up lie in one tensor, and the blocks of up begin with its first row, as those of a tensor of its own.
  bool restarts = false;
  bool operator==(const ElementGrid&) const = default;
};

/// The last rows of a matrix, where they lie in another tensor than the first ones.
struct MatrixTail {
  /// Rows from this one on.
  i64 first_row = 0;
  std::size_t tensor = 0;
  /// Counted in the matrix's own rows, so the offset, which is that of row 0, may be negative.
  Placement place;
};

/// One logical matrix of one expert and where its bytes are. Shape [rows, cols]; a bias is [rows, 1]; scales without
/// their padding.
struct Matrix {
  /// Index into the inventory, or into the plan's outputs.
  std::size_t tensor = 0;
  Role role = Role::Gate;
  TensorKind kind = TensorKind::Weight;
  Dtype dtype = Dtype::U8;
  ElementGrid grid = {};
  i64 expert = 0;
  i64 rows = 0;
  i64 cols = 0;
  i64 element_bytes = 1;
  Placement place;
  /// The last rows of gate and up where an interleaved FC1 is cut in the middle into two tensors; else null. Few
  /// matrices have one, and there are as many matrices as a model has experts, three times over.
  std::shared_ptr<const MatrixTail> tail;
};

struct Naming;

/// The experts of one layer, routed or shared.
struct ExpertBlock {
  /// "model": the weights themselves. Otherwise the optimizer's states of them: "exp_avg", "param", ...
  std::string state = "model";
  /// The text before the layer stack in the keys, e.g. "module." or "language_model.".
  std::string scope;
  /// "decoder", "mtp", ...: which stack of layers; "mtp.2" for the stack inside the third MTP layer.
  std::string stack;
  i64 layer = 0;
  /// The keys' text up to the expert part, layer number included, so that `--naming keep` prints what
  /// it read.
  std::string key_prefix;
  /// The part of `key_prefix` in front of the layer stack, e.g. "optimizer.state.exp_avg.".
  std::string key_scope;
  /// The text behind the expert part: ".exp_avg" where the optimizer's keys end in the state.
  std::string key_suffix;
  /// The word of its scales of blocks where keys of linear layers spell it: "weight_scale_inv", or DeepSeek-V4's
  /// "scale"; else empty.
  std::string scale_word;
  /// Layers in each of the block's tensors, where a leading axis counts them; else 0.
  i64 stacked_layers = 0;
  /// This layer's index on that axis.
  i64 layer_slot = 0;
  ExpertSet set = ExpertSet::Routed;
  i64 num_experts = 1;
  i64 hidden_size = 0;
  /// F; -1 where it differs by expert.
  i64 intermediate_size = 0;
  Axes axes = Axes::OutIn;
  /// The kind that its weights are stored as.
  TensorKind codes = TensorKind::Weight;
  /// The grouping of the weights, and that of the biases (Megatron's flags for them are independent).
  Experts experts = Experts::Indexed;
  Experts bias_experts = Experts::Indexed;
  /// Says whether FC1 is stored as one tensor.
  bool fused = false;
  /// Says whether gate and up are the two tensors that an interleaved FC1, cut in the middle, leaves.
  bool halved = false;
  Glu glu;
  std::vector<Matrix> matrices;

  bool is_optimizer_state() const { return state != "model"; }
};

/// "3", "mtp.0", "talker.7": the layer's name in reports and in digest identities.
std::string layer_label(const ExpertBlock& block);

/// The purpose of a matrix outside of the experts (src/arch/dense_layout.hpp has names and sizes).
enum class DenseRole : std::uint8_t {
  Embedding,
  Head,
  FinalNorm,
  AttentionNorm,
  MlpNorm,
  // attention with query groups
  Q,
  /// The gate of the attention's output, which Qwen3-Next projects beside q.
  QGate,
  K,
  V,
  AttentionOut,
  QNorm,
  KNorm,
  /// One norm over all heads, where others have one for each.
  WideQNorm,
  WideKNorm,
  Sinks,
  // multi-head latent attention
  LatentQ,
  QDown,
  QLatentNorm,
  QUp,
  KvDown,
  KvLatentNorm,
  KvUp,
  // the indexer that chooses the tokens which sparse attention sees
  IndexerQ,
  IndexerK,
  IndexerKNorm,
  IndexerKNormBias,
  /// The weights of its heads.
  IndexerWeights,
  // the MLP of a dense layer, and what stands beside the experts of another
  MlpGate,
  MlpUp,
  MlpDown,
  Router,
  CorrectionBias,
  SharedGate,
  // GatedDeltaNet
  DeltaQ,
  DeltaK,
  DeltaV,
  DeltaZ,
  DeltaBeta,
  DeltaAlpha,
  ConvQ,
  ConvK,
  ConvV,
  DeltaDecay,
  DeltaTimeBias,
  DeltaNorm,
  DeltaOut,
  // Mamba-2; its convolution has matrices, and biases, of its own for x, B and C
  MambaZ,
  MambaX,
  MambaB,
  MambaC,
  MambaTime,
  MambaConvX,
  MambaConvB,
  MambaConvC,
  MambaDecay,
  MambaSkip,
  MambaTimeBias,
  MambaNorm,
  MambaOut,
  /// The way from the hidden state to what experts map, and back.
  ExpertsDown,
  ExpertsUp,
  // multi-token prediction
  MtpEmbeddingNorm,
  MtpHiddenNorm,
  MtpProjection,
  MtpFinalNorm,
};

/// "attention/q", "router": the role's name in reports and in digest identities.
std::string_view to_string(DenseRole role);

/// One logical matrix of a whole model outside of its experts, as [out, in]; what belongs to each element of a vector,
/// such as a norm, is one row.
struct DenseMatrix {
  /// "decoder" or "mtp"; empty for the embedding, the final norm and the head.
  std::string_view stack;
  i64 layer = 0;
  DenseRole role = DenseRole::Embedding;
  /// The role, expert and grid in it mean nothing. Its dtype is that of the logical elements.
  Matrix matrix;
  /// Rows of one attention head; 0 where rows are not heads'.
  i64 head_rows = 0;
  /// It makes the logical elements from the stored ones.
  ComputeOp op = ComputeOp::None;
  Dtype stored_dtype = Dtype::U8;
};

/// "3", "mtp.0"; empty where it is in no layer.
std::string layer_label(const DenseMatrix& matrix);

/// A tensor that is stored once more: MTP's copies of the embedding and the head, the head of a tied model. It is no
/// part of the model by itself, so a conversion to a naming without it drops it, once the bytes are seen to be the
/// same.
struct TensorCopy {
  std::size_t tensor = 0;
  DenseRole of = DenseRole::Embedding;
  /// The tensor that it repeats.
  std::size_t original = 0;
};

/// A tensor that contradicts the configuration, and how, as a sentence.
struct DenseMisfit {
  std::size_t tensor = 0;
  std::string fault;
};

/// A way in which a checkpoint is not the whole model that its configuration promises, under the names that programs
/// read.
struct ModelFlaw {
  enum class Kind : std::uint8_t {
    /// A tensor that every model of the family has is not there, or the experts contradict the configuration. No
    /// program loads that, and no other naming takes it.
    Broken,
    /// It is there in a form that programs read, and that no rule moves into another naming.
    NotMoved,
    /// All keys begin with a text that programs do not read.
    OtherPrefix,
    /// There are more MTP layers than the configuration says.
    ExtraMtp,
    /// Tensors that programs do not read say that the model is another: factors of an adapter, an MTP layer's own.
    Unread,
    /// A tower beside the language model, which sees, hears or talks, lacks tensors or contradicts the configuration.
    /// Trainers of the language model do not read it.
    Beside,
    /// None of those towers is there, though the configuration has them: the language model alone, as trainers keep it.
    Alone,
  };
  Kind kind = Kind::Broken;
  ErrorCode code = ErrorCode::ModelIncomplete;
  /// The tensor at fault, whether it is there or not; may be empty.
  std::string tensor;
  /// A sentence.
  std::string text;

  bool stops_renaming() const { return kind == Kind::Broken || kind == Kind::NotMoved; }
};

struct Architecture;
struct DenseNaming;

/// The four answers of a layout (docs/architecture.md).
struct LayoutAnswers {
  std::string naming;
  /// "indexed", "grouped" or "mixed"; "none" of a dense model.
  std::string experts;
  Glu glu;
  /// "option", "record", "arguments" (that a trainer saved), "naming" or "none": what settled `glu`.
  std::string glu_source;
  /// Absent without shared experts.
  std::optional<Glu> shared_glu;
  /// The order of the optimizer's states of routed FC1s; absent without any.
  std::optional<Glu> optimizer_glu;

  bool is_dense() const { return experts == "none"; }
};

/// The user's answers about the source.
struct SourceAnswers {
  std::optional<std::string> naming = std::nullopt;
  std::optional<Glu> glu = std::nullopt;
  std::optional<Glu> shared_glu = std::nullopt;
  /// The text that messages put before "naming", "glu", ... to name the option that gave the answer.
  std::string option_prefix = "--from-";
  /// The order of the optimizer's states of routed experts, where it is not `glu`.
  std::optional<Glu> optimizer_glu = std::nullopt;
  /// Go on as if the optimizer's tensors were not there.
  bool drop_optimizer = false;
  /// A config.json that says what model it is, where none lies beside the checkpoint; empty: none.
  std::string config_file = {};
  /// The type of a model that a trainer saved. Where nothing else says what model it is, its configuration is made from
  /// the saved arguments for this type, or for the one that fits if the text is empty. None: it is not made.
  std::optional<std::string> trained_type = std::nullopt;
  /// Quantized weights are read as weights of this dtype, BF16 or F32; none: as they are stored.
  std::optional<Dtype> decode = std::nullopt;
  /// The program whose decoder is followed where programs decode a format to other bits: "modelopt",
  /// "compressed-tensors", ...; empty: that of the program that wrote it.
  std::string decode_as = {};
  /// Decode or encode them by a second, plain road, to prove what the first one gave.
  bool decode_plainly = false;
  /// Weights are read as codes of this format, a word of encoder_words(): "fp8:128x128". Quantized weights become
  /// "mxfp8", too, where that is exact. Empty: as they are stored.
  std::string encode = {};
  /// The program whose encoder is followed; empty: the first one of the format.
  std::string encode_as = {};
  /// An adapter of PEFT whose products are added to the weights: its directory; empty: none.
  std::string merge = {};
  /// The way in which they are added, a word of merge_programs(); empty: the first one.
  std::string merge_as = {};
  /// How an adapter's factors of packed experts were written where shapes do not tell, a word of lora_file_words();
  /// empty: shapes tell.
  std::string from_lora = {};
  /// How an adapter's factors of packed experts are written, a word of lora_file_words(); empty: as PEFT 0.19 and
  /// later.
  std::string to_lora = {};
  /// An adapter is read as if it were in this layout: "indexed", "grouped", "hf", "vllm", "sglang", "megatron"; empty:
  /// a pair of factors for each matrix of each expert; "stored": as it is.
  std::string adapter_layout = {};
  /// A config.json of the model that an adapter is for, where nothing else says what that is; empty: none.
  std::string adapted_config = {};
  /// Write more ranks, of zeros, where a layout needs them.
  bool grow_rank = false;
  /// The layers of the main stack that are read, "3" or "0-3", and counted anew from 0; empty: all.
  std::string layers = {};
  /// Go on as if there were no multi-token prediction.
  bool drop_mtp = false;
  /// Go on as if there were the language model alone, without what sees, hears and speaks.
  bool drop_vision = false;
  /// The routed experts that are read of each layer, and counted anew from 0: "0-7", or a file that lists them
  /// (src/model/kept_experts.hpp); empty: all.
  std::string keep_experts = {};
  /// The dtypes in which tensors are read, as rules "PATTERN=DTYPE" between commas, of which the first counts that
  /// matches a tensor's role or name: "router=f32,*=bf16"; empty: as they are stored.
  std::string dtypes = {};
  /// Tensors may be rounded to a dtype that has fewer values.
  bool allow_narrowing = false;
  /// Routed experts are read with zero rows and columns up to a width that is a multiple of this; 0: as they are.
  i64 pad_experts = 0;
  /// They are read without the rows and columns that an earlier run added.
  bool unpad = false;
  /// A checkpoint that gives what this one lacks; empty: none.
  std::string fill_from = {};
  /// Read scales of blocks of FP8 weights as those of blocks of so many rows; 0: as they are stored.
  i64 scale_rows = 0;
};

/// A tensor that belongs to an expert's tensor without having its shape, e.g. the step of its optimizer.
struct BoundTensor {
  std::size_t tensor = 0;
  /// The expert's.
  std::size_t weight = 0;
};

/// A tensor without which every program computes the same: a change of naming leaves it out.
struct IdleTensor {
  std::size_t tensor = 0;
  /// It is one only where all its elements are zero, which has to be read: a router's bias of a family that has none.
  bool if_zero = false;
};

/// The layout that explains a checkpoint, and what was found with it.
struct Recognition {
  const Naming* naming = nullptr;
  /// It is false where several families spell the keys alike and nobody named one; `naming` is then one of them.
  bool naming_settled = true;
  LayoutAnswers layout;
  /// It is an adapter by itself: all tensors are `others`, and nothing of them has a layout that a plan changes.
  bool is_adapter = false;
  std::vector<ExpertBlock> blocks;
  /// Indices of the tensors that are not expert matrices, in inventory order.
  std::vector<std::size_t> others;
  /// The tensors of `others` that look like parts of experts but that no row explains, e.g. scales of a quantized
  /// family. A change of layout would leave them behind, so it refuses.
  std::vector<std::size_t> unexplained;
  /// The tensors of `others` that say something about one expert tensor under its key. They stay as they are, so that
  /// key must stay, too.
  std::vector<BoundTensor> bound;
  /// The tensors of `others` that are an optimizer's state of parameters that it does not name: flat buckets, or
  /// parameters by number.
  std::vector<std::size_t> buckets;
  /// The optimizer's tensors, where SourceAnswers::drop_optimizer said to leave them out. Not in `others`.
  std::vector<std::size_t> dropped;
  /// Says whether the order of the optimizer's states was taken from --from-glu, which speaks of the weights.
  bool optimizer_glu_assumed = false;
  /// Sentences about what is wrong but stops only conversions.
  std::vector<std::string> problems;
  /// Layers of the main stack, from config.json or the record: later ones are MTP layers.
  std::optional<i64> num_hidden_layers;
  /// The rest of the model, where its architecture is known (src/arch/recognize_model.hpp). Its tensors are in
  /// `others`, too.
  std::vector<DenseMatrix> dense;
  std::vector<TensorCopy> copies;
  /// Tensors of `others` whose key is known, but whose shape or layer contradicts config.json.
  std::vector<DenseMisfit> misfits;
  std::vector<IdleTensor> idle;
  /// The text that a wrapper of the model, or a directory of one rank, put in front of all keys: "_orig_mod.".
  std::string wrapper;
  /// Keys outside of the experts are spelled as transformers holds them in memory, not as the hub has them.
  bool in_memory = false;
  /// The names that tensors of `others` have in the model itself, without `wrapper` and as the hub spells them, where
  /// those are not their own.
  std::map<std::size_t, std::string> model_names;
  /// The ways in which it is not the whole model, where the architecture is known.
  std::vector<ModelFlaw> flaws;
  /// The sizes of the model, from its configuration; null where there is none, or of a family without a map.
  std::shared_ptr<const Architecture> architecture;
  /// The end of a sentence that says why `architecture` is null.
  std::string no_architecture;
  /// The spelling that explains `dense`, and the text in front of its keys ("model.").
  const DenseNaming* dense_naming = nullptr;
  std::string dense_root;
};

/// Pure: names, shapes, config hints and record in; layout out. Never guesses an order of gate and
/// up rows: where neither the user, nor the record, nor a named family settles it, glu is Unknown.
/// Throws the expert, record, ambiguity and conflict errors of ErrorCode.
Recognition recognize(const Inventory& inventory, const ModelHints& hints, const Record& record,
                      const SourceAnswers& answers);

/// Returns whether a tensor of this name is an optimizer's: its states, its buckets and what else stands beside them.
bool is_optimizer_tensor(std::string_view name);

/// A program that loads a checkpoint as it is.
struct Loader {
  std::string program;
  std::string versions;
  /// The flags that tell the program, or nothing.
  std::string flags;
};

/// The programs that load a checkpoint as it is; without one, the reason.
struct LoadsIn {
  std::vector<Loader> loaders;
  std::string why_none;
  /// Some program may load it: not all of it was looked at.
  bool is_unknown = false;
};

/// A row of the table of namings; nullptr where none has that name or lists that model_type.
const Naming* find_expert_naming(std::string_view name);
/// The same, or else the naming of a dense family, which spells no experts: "hf:llama".
const Naming* find_naming(std::string_view name);

/// One line of `glu-ckpt layouts`.
struct NamingSummary {
  std::string name;
  std::vector<std::string> model_types;
  std::string axes;
  std::string experts;
  std::string glu;
  std::string example;
  /// The forms of routed experts that the family's own software stores: "indexed split", "grouped contiguous".
  std::vector<std::string> native;
  /// The programs that read the keys.
  std::string loads_in;
};
std::vector<NamingSummary> naming_summaries();

}  // namespace glu_ckpt
