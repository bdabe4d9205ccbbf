#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "cli/session.hpp"
#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/json.hpp"
#include "format/safetensors_header.hpp"
#include "glu_ckpt/forward.hpp"
#include "io/file.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt::cli {
namespace {

/// The tensors of the input file, and what of them is passed on.
struct TokenFile {
  std::vector<std::byte> x;
  std::vector<i64> index;
  std::vector<float> weights;
  RoutedTokens tokens;
};

const ExpertBlock& find_layer(const Opened& opened, const std::string& layer) {
  std::vector<std::string> labels;
  for (const ExpertBlock& block : opened.recognition.blocks) {
    if (block.set != ExpertSet::Routed || block.is_twin()) continue;
    if (layer_label(block) == layer) return block;
    labels.push_back(layer_label(block));
  }
  const std::string path = opened.source->path().string();
  if (labels.empty()) fail(ErrorCode::NoExperts, {path, {}}, "{}: there are no experts to run", path);
  fail(ErrorCode::LayerMissing, {path, {}}, "{}: there are no experts in a layer {}; layers with experts: {}", path,
       layer, fmt::join(labels, ", "));
}

class TokenReader {
 public:
  explicit TokenReader(const std::string& path) : path_(path), source_(open_source(path)) {}

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
  if (type != "llama4_text" && type != "llama4") return;
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
  constexpr const char* kName = "y.safetensors";
  StagedDir staged(path, overwrite);
  const std::array<OutputTensor, 1> tensors{
      OutputTensor{.name = "y", .dtype = dtype, .shape = shape, .bytes = static_cast<i64>(y.size())}};
  const std::string header = print_header(tensors, {{"format", "pt"}});
  const File file = File::create(staged.path() / kName);
  file.pwrite_exact(std::as_bytes(std::span(header)), 0);
  file.pwrite_exact(y, static_cast<i64>(header.size()));
  file.sync();
  staged.commit_file(kName);
}

std::string report(const Options& options, const ExpertBlock& block, const LayerOptions& layer, Dtype dtype,
                   const std::vector<i64>& shape) {
  const auto activation = to_string(layer.activation.kind);
  if (!options.json)
    return fmt::format("layer {}: {} experts, {}: y {} {}\n", layer_label(block), block.num_experts, activation,
                       dtype_name(dtype), shape_text(shape));
  return JsonWriter()
             .begin_object()
             .field("output", options.output)
             .field("layer", layer_label(block))
             .field("num_experts", block.num_experts)
             .field("tokens", shape[0])
             .field("activation", activation)
             .field("alpha", static_cast<double>(layer.activation.alpha))
             .field("limit", static_cast<double>(layer.activation.limit))
             .field("offset", static_cast<double>(layer.activation.offset))
             .field("dtype", dtype_name(dtype))
             .field("device", layer.runner->name())
             .end_object()
             .text() +
         "\n";
}

}  // namespace

int cmd_forward(const Options& options) {
  const Opened opened = open_model(options.input, options.from);
  const Source& source = *opened.source;
  const ExpertBlock& block = find_layer(opened, options.forward.layer);
  require_known_glu(opened, block, "--from-glu");
  watch_signals();
  const auto runner = open_runner(options);
  LayerOptions layer;
  const TokenFile file = TokenReader(options.forward.tokens).read(block);
  const Dtype dtype = with_place(source, [&] { return compute_dtype(opened.model(), block, options.forward.fp32); });
  layer.activation = with_place(source, [&] {
    if (!options.forward.activation.kind) check_weights_place(source.hints(), file);
    return choose_activation(source.hints(), options.forward.activation, block.glu.kind != Glu::Kind::None);
  });
  layer.fp32 = options.forward.fp32;
  layer.jobs = options.jobs;
  layer.memory_bytes = options.memory_bytes;
  layer.runner = runner.get();
  // Refused before anything is computed; nothing is left where a run is killed later.
  (void)StagedDir(options.output, options.overwrite);
  check_contents(options, source, "checking");
  check_twin_orders(options, opened, options.from);
  const std::vector<i64> shape{file.tokens.tokens, block.hidden_size};
  std::vector<std::byte> y;
  try {
    report::Progress progress(progress_style(options), "forward", 0);
    layer.on_progress = execute_options(options, progress).on_progress;
    y = forward_layer(opened.model(), block, file.tokens, layer);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::TokensInvalid) fail_with_place(error, source);
    fail(error.code(), {options.forward.tokens, {}}, "{}: {}", options.forward.tokens, error.what());
  }
  write_y(options.output, options.overwrite, shape, dtype, y);
  if (!options.quiet || options.json) print_out(report(options, block, layer, dtype, shape));
  return 0;
}

}  // namespace glu_ckpt::cli
