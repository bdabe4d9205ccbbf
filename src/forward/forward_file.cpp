/// One layer's experts on tokens from a file.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "families/family.hpp"
#include "format/check_apart.hpp"
#include "format/safetensors_header.hpp"
#include "glu_ckpt/forward.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "io/staged_dir.hpp"
#include "model/known_orders.hpp"
#include "model/locate_errors.hpp"
#include "model/open_checkpoint.hpp"
#include "model/stage.hpp"

namespace glu_ckpt {
namespace {

/// The tensors of the input file, and what of them is passed on.
struct TokenFile {
  std::vector<std::byte> x;
  std::vector<i64> index;
  std::vector<float> weights;
  RoutedTokens tokens;
};

const ExpertBlock& find_layer(const Checkpoint& checkpoint, const std::string& layer) {
  std::vector<std::string> labels;
  for (const ExpertBlock& block : checkpoint.recognition.blocks) {
    if (block.set != ExpertSet::Routed || block.is_optimizer_state()) continue;
    if (layer_label(block) == layer) return block;
    labels.push_back(layer_label(block));
  }
  const std::string path = checkpoint.source->path().string();
  if (labels.empty()) fail(ErrorCode::NoExperts, {path, {}}, "{}: there are no experts to run", path);
  fail(ErrorCode::LayerMissing, {path, {}}, "{}: there are no experts in a layer {}; layers with experts: {}", path,
       layer, fmt::join(labels, ", "));
}

class TokenReader {
 public:
  explicit TokenReader(const std::string& path) : path_(path), source_(open_source(path)) {}

  const Source& source() const { return *source_; }

  TokenFile read(const ExpertBlock& block) const {
    const std::size_t x = find("x");
    const std::size_t index = find("index");
    const std::size_t weights = find("weights");
    const TensorRef& x_ref = tensor(x);
    require(x_ref, {Dtype::BF16, Dtype::F16, Dtype::F32});
    require(tensor(index), {Dtype::I64});
    require(tensor(weights), {Dtype::BF16, Dtype::F16, Dtype::F32});
    TokenFile file;
    if (x_ref.shape.size() != 2 || x_ref.shape[1] != block.hidden_size)
      refuse(x_ref, fmt::format("[tokens, {}]", block.hidden_size));
    file.tokens.tokens = x_ref.shape[0];
    const auto& shape = tensor(index).shape;
    if (shape.size() != 2 || shape[0] != file.tokens.tokens || shape[1] < 1)
      refuse(tensor(index), fmt::format("[{}, top_k], top_k at least 1", file.tokens.tokens));
    if (tensor(weights).shape != shape) refuse(tensor(weights), shape_text(shape));
    file.tokens.top_k = shape[1];
    file.tokens.x_dtype = x_ref.dtype;
    file.x = bytes_of(x);
    file.index.resize(static_cast<std::size_t>(shape[0] * shape[1]));
    source_->read(index, 0, std::as_writable_bytes(std::span(file.index)));
    file.weights.resize(file.index.size());
    widen_row(bytes_of(weights).data(), tensor(weights).dtype, file.weights);
    file.tokens.x = file.x;
    file.tokens.index = file.index;
    file.tokens.weights = file.weights;
    return file;
  }

 private:
  const TensorRef& tensor(std::size_t index) const { return source_->inventory().tensors[index]; }

  std::size_t find(const std::string& name) const {
    const auto& tensors = source_->inventory().tensors;
    const auto found = std::ranges::find(tensors, name, &TensorRef::name);
    if (found == tensors.end())
      fail(ErrorCode::TokensInvalid, {path_, name}, "{}: no tensor '{}'; x, index and weights are needed", path_, name);
    return static_cast<std::size_t>(found - tensors.begin());
  }

  void require(const TensorRef& ref, const std::vector<Dtype>& dtypes) const {
    if (std::ranges::find(dtypes, ref.dtype) != dtypes.end()) return;
    std::vector<std::string_view> names;
    names.reserve(dtypes.size());
    for (const Dtype dtype : dtypes) names.push_back(dtype_name(dtype));
    fail(ErrorCode::TokensInvalid, {path_, ref.name}, "{}: '{}' is {}, expected {}", path_, ref.name,
         dtype_name(ref.dtype), fmt::join(names, ", "));
  }

  [[noreturn]] void refuse(const TensorRef& ref, const std::string& expected) const {
    fail(ErrorCode::TokensInvalid, {path_, ref.name}, "{}: '{}' is {}, expected {}", path_, ref.name,
         shape_text(ref.shape), expected);
  }

  std::vector<std::byte> bytes_of(std::size_t index) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor(index).bytes));
    source_->read(index, 0, bytes);
    return bytes;
  }

  std::string path_;
  std::unique_ptr<Source> source_;
};

/// In these families a token is multiplied by its weight before FC1, where the contract has it behind the activation.
void check_weights_place(const ModelHints& hints, const TokenFile& file) {
  const std::string& type = hints.text_model_type.empty() ? hints.model_type : hints.text_model_type;
  const Family* const family = find_family(type);
  if (family == nullptr || !family->weights_on_input) return;
  const auto other = std::ranges::find_if(file.weights, [](float weight) { return weight != 1; });
  if (other != file.weights.end())
    fail(
        ErrorCode::UnknownActivation, {},
        "{} multiplies x by the weights before the experts, but a weight is {}: give the products as x with weights of "
        "1, or say --activation",
        type, *other);
}

void write_y(const std::string& path, bool overwrite, const std::vector<i64>& shape, Dtype dtype,
             const std::vector<std::byte>& y) {
  StagedFile staged(path, overwrite);
  const std::array<OutputTensor, 1> tensors{
      OutputTensor{.name = "y", .dtype = dtype, .shape = shape, .bytes = static_cast<i64>(y.size())}};
  const std::string header = print_header(tensors, {{"format", "pt"}});
  const File file = staged.create();
  file.pwrite_exact(std::as_bytes(std::span(header)), 0);
  file.pwrite_exact(y, static_cast<i64>(header.size()));
  file.sync();
  staged.commit();
}

}  // namespace

ForwardWritten forward(const ForwardRequest& request, const RunOptions& run) {
  const Checkpoint checkpoint = open_and_warn(run, request.checkpoint, request.from);
  const Source& source = *checkpoint.source;
  const ExpertBlock& block = find_layer(checkpoint, request.layer);
  require_known_glu(checkpoint, block, request.from.option_prefix);
  const auto runner =
      make_mlp_runner(run.device == "auto" ? "cpu" : run.device, BackendOptions{run.device_memory_bytes});
  LayerOptions layer;
  const TokenReader tokens(request.tokens.string());
  if (const auto format = format_of_name(request.output); format && *format != Format::Safetensors)
    fail(ErrorCode::Usage, {request.output.string(), {}},
         "{}: the outputs are written as safetensors; name the file so", request.output.string());
  check_apart(request.output, tokens.source());
  check_apart(request.output, source);
  const TokenFile file = tokens.read(block);
  const Dtype dtype =
      locate_errors(source, [&] { return compute_dtype(checkpoint.model(), block, request.compute.fp32); });
  layer.activation = locate_errors(source, [&] {
    if (!request.compute.activation.kind) check_weights_place(source.hints(), file);
    return choose_activation(source.hints(), request.compute.activation, block.glu.kind != Glu::Kind::None);
  });
  layer.fp32 = request.compute.fp32;
  layer.jobs = jobs_of(run);
  layer.memory_bytes = run.memory_bytes;
  layer.runner = runner.get();
  // Refused before anything is computed; nothing is left where a run is killed later.
  (void)StagedFile(request.output, request.overwrite);
  check_contents(run, source, "checking");
  check_master_weights(run, checkpoint, request.from);
  const std::vector<i64> shape{file.tokens.tokens, block.hidden_size};
  std::vector<std::byte> y;
  try {
    Stage stage(run, "forward", 0);
    layer.on_progress = stage.on_progress();
    y = forward_layer(checkpoint.model(), block, file.tokens, layer);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::TokensInvalid) fail_located(error, source);
    fail(error.code(), {request.tokens.string(), {}}, "{}: {}", request.tokens.string(), error.what());
  }
  write_y(request.output, request.overwrite, shape, dtype, y);
  return {layer_label(block), block.num_experts, shape, dtype, layer.activation, runner->name()};
}

}  // namespace glu_ckpt
