/// StatePlan: a conversion whose source and output are tensors in memory.

#include "glu_ckpt/state_plan.hpp"

#include <algorithm>
#include <set>

#include "arch/model_view.hpp"
#include "convert/conversion.hpp"
#include "core/checked_math.hpp"
#include "core/compute.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "exec/decode_on_gpu.hpp"
#include "exec/memory_ends.hpp"
#include "format/model_config.hpp"
#include "layout/key_pattern.hpp"
#include "model/open_checkpoint.hpp"
#include "quant/decoded_source.hpp"
#include "verify/checkpoint_digest.hpp"

namespace glu_ckpt {
namespace {

/// Returns the key of an expert's tensor with its numbers moved by as many experts and layers, where its program counts
/// through the whole model: `model.layers.12.mlp.experts.4.up_proj.weight` by -4 and -12 is that of expert 0 of layer
/// 0. Keys of programs that count within one process (Naming::counts_in_process), and all others, stay. Throws Usage
/// where a number would become negative.
std::string moved_numbers(std::string_view key, i64 experts, i64 layers) {
  KeySkeleton skeleton = skeletonize(key);
  const std::vector<const KeyPattern*> patterns = match_patterns(skeleton);
  if (patterns.empty() || patterns.front()->naming->counts_in_process) return std::string(key);
  const KeyPattern& pattern = *patterns.front();
  const auto move = [&](std::size_t from_last, i64 by, std::string_view what) {
    i64& number = skeleton.numbers[skeleton.numbers.size() - from_last];
    if (number + by < 0)
      fail(ErrorCode::Usage, {{}, std::string(key)}, "'{}' is of {} {}, but the first {} of this part is {}", key, what,
           number, what, -by);
    number += by;
  };
  if (pattern.has_expert) move(1, experts, "expert");
  if (!pattern.stacked_layers && pattern.stack->stack == "decoder") move(pattern.has_expert ? 2 : 1, layers, "layer");
  return print_key(skeleton);
}

/// The name of the checkpoint in messages, which no file has.
constexpr const char* kStateDict = "<state dict>";

i64 bytes_of(const std::string& name, const TensorView& view) {
  const auto elements = std::ranges::any_of(view.shape, [](i64 extent) { return extent < 0; })
                            ? std::nullopt
                            : checked_product(view.shape);
  const auto bits = elements ? checked_mul(*elements, dtype_bits(view.dtype)) : std::nullopt;
  if (!bits || *bits % 8 != 0)
    fail(ErrorCode::ShapeOverflow, {kStateDict, name}, "'{}': {} of shape {} is no whole number of bytes", name,
         dtype_name(view.dtype), shape_text(view.shape));
  return *bits / 8;
}

Inventory inventory_of(std::span<const NamedTensor> tensors) {
  Inventory inventory;
  inventory.files.emplace_back(kStateDict);
  std::set<std::string_view> names;
  i64 offset = 0;
  for (const auto& [name, view] : tensors) {
    if (!names.insert(name).second)
      fail(ErrorCode::Usage, {kStateDict, name}, "'{}': two tensors have this name", name);
    if (!is_contiguous(view))
      fail(ErrorCode::Usage, {kStateDict, name}, "'{}': its elements do not follow one another; make it contiguous",
           name);
    const i64 bytes = bytes_of(name, view);
    inventory.tensors.push_back({name, view.dtype, view.shape, bytes, 0, offset});
    offset += bytes;
  }
  return inventory;
}

bool stays_in_place(const Move& move) {
  return move.src_offset == move.dst_offset && std::ranges::all_of(move.dims, [](const MoveDim& dim) {
           return dim.count == 1 || dim.src_step == dim.dst_step;
         });
}

/// Returns the input that an output is, under the same dtype and shape. The plan is proved, so every byte is written:
/// where each stays at its offset, the tensors are the same, however many moves that takes.
std::optional<std::size_t> whole_input(const Inventory& inventory, const Plan& plan, std::size_t output) {
  const std::span<const Move> moves(plan.moves.begin() + static_cast<std::ptrdiff_t>(plan.first_move[output]),
                                    plan.moves.begin() + static_cast<std::ptrdiff_t>(plan.first_move[output + 1]));
  if (moves.empty()) return std::nullopt;
  const std::size_t input = moves.front().src;
  const OutputTensor& made = plan.outputs[output];
  const TensorRef& stored = inventory.tensors[input];
  const bool is_same = stored.bytes == made.bytes && stored.dtype == made.dtype && stored.shape == made.shape;
  const auto stays = [&](const Move& move) { return move.src == input && stays_in_place(move); };
  return is_same && std::ranges::all_of(moves, stays) ? std::optional(input) : std::nullopt;
}

bool is_part(const StateFacts& facts) { return facts.first_expert != 0 || facts.first_layer != 0; }

void check_part(const StateFacts& facts, const ConvertOptions& options) {
  if (facts.first_expert < 0 || facts.first_layer < 0)
    fail(ErrorCode::Usage, {}, "first_expert {} and first_layer {}: both count from 0", facts.first_expert,
         facts.first_layer);
  if (is_part(facts) && options.from.decode)
    fail(ErrorCode::Usage, {},
         "first_expert and first_layer exclude decode, whose codes have names of their own; decode "
         "the part first");
}

/// Describes the tensors, and keeps their addresses in `views`. The words that wrappers put into names are taken off
/// here, so that nothing stands between a plan and the tensors.
CheckpointInfo describe(std::span<const NamedTensor> tensors, const StateFacts& facts, TensorViews& views) {
  CheckpointInfo info;
  info.path = kStateDict;
  info.inventory = inventory_of(tensors);
  if (!facts.config.empty()) info.hints = parse_config(facts.config, kStateDict);
  info.record = facts.record;
  if (is_part(facts))
    for (TensorRef& tensor : info.inventory.tensors)
      tensor.name = moved_numbers(tensor.name, -facts.first_expert, -facts.first_layer);
  if (has_wrapper_words(info.inventory)) info.respelled = !take_off_wrapper_words(info.inventory, info.hints).empty();
  for (const NamedTensor& tensor : tensors) views.push_back(tensor.view);
  return info;
}

struct MemoryRange {
  const std::byte* begin = nullptr;
  i64 bytes = 0;
  const std::string* name = nullptr;
  const TensorView* view = nullptr;
};

}  // namespace

struct StatePlan::State {
  CheckpointInfo info;
  std::shared_ptr<TensorViews> views = std::make_shared<TensorViews>();
  Conversion conversion;
  /// The names as they were given, with all of their words.
  std::vector<std::string> names;
  /// The bytes of the state dict are those that the plan moves: nothing is decoded, encoded or merged on the way.
  bool is_plain = true;
  std::vector<Renamed> renamed;

  const std::vector<TensorRef>& inputs() const { return info.inventory.tensors; }
  const std::vector<OutputTensor>& outputs() const { return conversion.plan.outputs; }

  /// The stored tensors behind each tensor of a source that decodes; empty for another source.
  std::vector<DecodedTensor> decoded;

  /// The names of what moves count as their source.
  std::vector<std::string> source_names() const;
  void check_inputs(std::span<const TensorView> in) const;
  void check_outputs(std::span<const TensorView> in, std::span<const TensorView> out) const;
  void check_devices(std::span<const TensorView> in, std::span<const TensorView> out) const;
  std::optional<std::string> decoding_device(std::span<const TensorView> in, std::span<const TensorView> out) const;
  void check_scales_on(const std::string& device, std::span<const TensorView> in, GpuStream stream) const;
  std::vector<MoveInput> move_inputs(std::span<const TensorView> in) const;
};

std::vector<std::string> StatePlan::State::source_names() const {
  if (is_plain) return names;
  std::vector<std::string> made;
  for (const TensorRef& tensor : conversion.source.source->inventory().tensors) made.push_back(tensor.name);
  return made;
}

void StatePlan::State::check_inputs(std::span<const TensorView> in) const {
  if (in.size() != inputs().size())
    fail(ErrorCode::Usage, {}, "the plan is for {} tensors, and {} are given", inputs().size(), in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const TensorRef& planned = inputs()[i];
    if (in[i].dtype != planned.dtype || in[i].shape != planned.shape || !is_contiguous(in[i]))
      fail(ErrorCode::Usage, {{}, planned.name}, "'{}': is {}{} of shape {}, and the plan is for {} of shape {}",
           planned.name, is_contiguous(in[i]) ? "" : "not contiguous, ", dtype_name(in[i].dtype),
           shape_text(in[i].shape), dtype_name(planned.dtype), shape_text(planned.shape));
    if (in[i].data == nullptr && planned.bytes > 0)
      fail(ErrorCode::Usage, {{}, planned.name}, "'{}': a tensor without an address", planned.name);
  }
}

/// An output may be the very input that it renames.
void StatePlan::State::check_outputs(std::span<const TensorView> in, std::span<const TensorView> out) const {
  if (out.size() != outputs().size())
    fail(ErrorCode::Usage, {}, "the plan makes {} tensors, and {} are given", outputs().size(), out.size());
  std::vector<MemoryRange> ranges;
  for (std::size_t i = 0; i < in.size(); ++i)
    if (inputs()[i].bytes > 0) ranges.push_back({in[i].data, inputs()[i].bytes, &inputs()[i].name, nullptr});
  for (std::size_t t = 0; t < out.size(); ++t) {
    const OutputTensor& planned = outputs()[t];
    if (out[t].data == nullptr) continue;
    try {
      check_output_buffer(out[t], planned.shape, planned.dtype, out[t].device);
    } catch (const Error& error) {
      fail(error.code(), {{}, planned.name}, "'{}': {}", planned.name, error.what());
    }
    const auto same = std::ranges::find(renamed, t, &Renamed::output);
    if (planned.bytes > 0 && !(same != renamed.end() && in[same->input].data == out[t].data))
      ranges.push_back({out[t].data, planned.bytes, &planned.name, &out[t]});
  }
  std::ranges::sort(ranges, std::less<>(), &MemoryRange::begin);
  MemoryRange last;
  for (const MemoryRange& range : ranges) {
    // Two inputs may share memory, as tied weights do.
    const bool writes = range.view != nullptr || last.view != nullptr;
    if (last.begin != nullptr && writes && range.begin < last.begin + last.bytes)
      fail(ErrorCode::Usage, {{}, *range.name}, "'{}' and '{}' share memory, and one of them is written to", *last.name,
           *range.name);
    if (last.begin == nullptr || range.begin + range.bytes > last.begin + last.bytes || writes) last = range;
  }
}

void StatePlan::State::check_devices(std::span<const TensorView> in, std::span<const TensorView> out) const {
  for (const Move& move : conversion.plan.moves)
    if (out[move.dst].data != nullptr && in[move.src].device != out[move.dst].device)
      fail(ErrorCode::Usage, {{}, outputs()[move.dst].name}, "'{}' is on {}, and '{}', which goes into it, on {}",
           outputs()[move.dst].name, out[move.dst].device, inputs()[move.src].name, in[move.src].device);
}

/// Returns the GPU where all weights can be decoded: every tensor is there, and the kernels know every grid.
std::optional<std::string> StatePlan::State::decoding_device(std::span<const TensorView> in,
                                                             std::span<const TensorView> out) const {
  if (decoded.empty() || in.empty() || in.front().device == "cpu") return std::nullopt;
  const std::string& device = in.front().device;
  const auto is_there = [&](const TensorView& view) { return view.data == nullptr || view.device == device; };
  const auto is_known = [](const DecodedTensor& tensor) { return !tensor.is_decoded || tensor.coded; };
  const auto is_stored = [&](const Compute& computed) { return !decoded[computed.src].is_decoded; };
  const bool all = std::ranges::all_of(in, is_there) && std::ranges::all_of(out, is_there) &&
                   std::ranges::all_of(decoded, is_known) && std::ranges::all_of(conversion.plan.computes, is_stored);
  return all ? std::optional(device) : std::nullopt;
}

void StatePlan::State::check_scales_on(const std::string& device, std::span<const TensorView> in,
                                       GpuStream stream) const {
  TensorViews scales;
  for (const DecodedTensor& tensor : decoded) {
    if (!tensor.coded) continue;
    scales.push_back(in[tensor.coded->scales]);
    if (tensor.coded->global) scales.push_back(in[*tensor.coded->global]);
  }
  const std::vector<std::byte> bytes = bytes_off_gpu(scales, device, stream);
  std::span<const std::byte> left(bytes);
  const auto take = [&](std::size_t input) {
    const auto count = static_cast<std::size_t>(inputs()[input].bytes);
    const std::span<const std::byte> taken = left.first(count);
    left = left.subspan(count);
    return taken;
  };
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    if (!decoded[i].coded) continue;
    const auto of_grid = take(decoded[i].coded->scales);
    check_scales(*conversion.source.source, i, of_grid,
                 decoded[i].coded->global ? take(*decoded[i].coded->global) : std::span<const std::byte>{});
  }
}

std::vector<MoveInput> StatePlan::State::move_inputs(std::span<const TensorView> in) const {
  const Source& source = *conversion.source.source;
  std::vector<MoveInput> inputs;
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    const i64 bytes = source.inventory().tensors[i].bytes;
    if (!decoded[i].coded) {
      inputs.push_back({in[decoded[i].stored].data, bytes, std::nullopt});
      continue;
    }
    const CodedTensor& coded = *decoded[i].coded;
    const auto at = [&](const std::optional<std::size_t>& index) {
      return index ? static_cast<const void*>(in[*index].data) : nullptr;
    };
    CodedWeight weight = coded.form;
    weight.data = at(coded.codes);
    weight.scales = at(coded.scales);
    weight.globals = static_cast<const float*>(at(coded.global));
    weight.zeros = static_cast<const u32*>(at(coded.zeros));
    weight.column_groups = static_cast<const u32*>(at(coded.groups));
    inputs.push_back({nullptr, bytes, weight});
  }
  return inputs;
}

StatePlan::StatePlan(std::span<const NamedTensor> tensors, const StateFacts& facts, const ConvertOptions& options,
                     const RunOptions& run)
    : state_(std::make_unique<State>()) {
  check_part(facts, options);
  state_->info = describe(tensors, facts, *state_->views);
  for (const NamedTensor& tensor : tensors) state_->names.push_back(tensor.name);
  const bool has_values =
      std::ranges::none_of(tensors, [](const NamedTensor& tensor) { return tensor.view.data == nullptr; });
  const SourceOpener open = [state = state_.get()] {
    return std::make_unique<MemorySource>(state->info, state->views);
  };
  try {
    state_->conversion = prepare_in_memory(open, options, run, has_values);
  } catch (const Error& error) {
    if (!is_part(facts)) throw;
    throw Error(error.code(),
                fmt::format("{} (numbers from first_expert={} and first_layer={} on count as 0, 1, ...)", error.what(),
                            facts.first_expert, facts.first_layer),
                error.file(), error.tensor())
        .with_missing_options(error.missing_options());
  }
  for (OutputTensor& output : state_->conversion.plan.outputs)
    output.name = moved_numbers(output.name, facts.first_expert, facts.first_layer);
  state_->is_plain = dynamic_cast<const MemorySource*>(state_->conversion.source.source.get()) != nullptr;
  if (!state_->is_plain) state_->decoded = decoded_tensors(*state_->conversion.source.source);
  const Plan& plan = state_->conversion.plan;
  for (std::size_t t = 0; state_->is_plain && t < plan.outputs.size(); ++t)
    if (const auto input = whole_input(state_->info.inventory, plan, t)) state_->renamed.push_back({t, *input});
}

StatePlan::~StatePlan() = default;
StatePlan::StatePlan(StatePlan&&) noexcept = default;
StatePlan& StatePlan::operator=(StatePlan&&) noexcept = default;

const Plan& StatePlan::plan() const { return state_->conversion.plan; }
const std::vector<Renamed>& StatePlan::renamed() const { return state_->renamed; }

std::size_t StatePlan::first_input(std::size_t output) const {
  const Plan& made = plan();
  std::size_t source = 0;
  if (made.first_move[output] < made.first_move[output + 1]) source = made.moves[made.first_move[output]].src;
  for (const Compute& computed : made.computes)
    if (computed.dst == output) source = computed.src;
  if (state_->is_plain) return source;
  const std::string& name = state_->conversion.source.source->inventory().tensors[source].name;
  // Decoded weights are numbered anew, and some have another name than their codes.
  const auto input = std::ranges::find(state_->inputs(), name, &TensorRef::name);
  return input == state_->inputs().end() ? 0 : static_cast<std::size_t>(input - state_->inputs().begin());
}

void StatePlan::run(std::span<const TensorView> in, std::span<const TensorView> out, const StateRun& run) const {
  state_->check_inputs(in);
  state_->check_outputs(in, out);
  if (state_->is_plain) {
    state_->check_devices(in, out);
    TensorViews made(out.begin(), out.end());
    for (const Renamed& same : state_->renamed)
      if (made[same.output].data == in[same.input].data) made[same.output].data = nullptr;
    return move_in_memory(plan(), in, made, {run.jobs, run.stream});
  }
  state_->views->assign(in.begin(), in.end());
  if (const auto device = state_->decoding_device(in, out)) {
    state_->check_scales_on(*device, in, run.stream);
    decode_and_move(plan(), state_->move_inputs(in), *state_->conversion.options.from.decode, out, *device, run.stream);
    TensorViews from(state_->decoded.size());
    std::ranges::transform(state_->decoded, from.begin(),
                           [&](const DecodedTensor& tensor) { return in[tensor.stored]; });
    return compute_in_memory(plan(), from, out);
  }
  MemorySink sink(out);
  ExecuteOptions options;
  options.jobs = jobs_of(RunOptions{.jobs = run.jobs});
  execute(plan(), *state_->conversion.source.source, sink, *make_backend("cpu"), options);
}

Digest digest_state(std::span<const NamedTensor> tensors, const StateFacts& facts, const SourceAnswers& answers,
                    const RunOptions& run) {
  const auto views = std::make_shared<TensorViews>();
  CheckpointInfo info = describe(tensors, facts, *views);
  Checkpoint checkpoint = open_checkpoint(std::make_unique<MemorySource>(std::move(info), views), answers);
  return digest_of(checkpoint, answers, run);
}

namespace {

void print_move(JsonWriter& json, const std::vector<std::string>& names, const Move& move) {
  json.begin_object();
  json.field("from", names[move.src]);
  json.field("from_offset", move.src_offset).field("offset", move.dst_offset).field("run_bytes", move.run_bytes);
  json.key("loops").begin_array();
  for (const MoveDim& dim : move.dims)
    if (dim.count > 1)
      json.begin_object()
          .field("count", dim.count)
          .field("from_step", dim.src_step)
          .field("step", dim.dst_step)
          .end_object();
  json.end_array().end_object();
}

}  // namespace

std::vector<std::string> StatePlan::dropped() const {
  const std::vector<std::string> names = state_->source_names();
  std::vector<std::string> found;
  for (const std::size_t index : plan().dropped) found.push_back(names[index]);
  return found;
}

std::string StatePlan::to_json() const {
  const Plan& made = plan();
  const std::vector<std::string> names = state_->source_names();
  JsonWriter json(1);
  json.begin_object().key("outputs").begin_array();
  for (std::size_t t = 0; t < made.outputs.size(); ++t) {
    const OutputTensor& output = made.outputs[t];
    json.begin_object().field("name", output.name).field("dtype", dtype_name(output.dtype)).key("shape").begin_array();
    for (const i64 extent : output.shape) json.value(extent);
    json.end_array().field("bytes", output.bytes).key("moves").begin_array();
    for (std::size_t m = made.first_move[t]; m < made.first_move[t + 1]; ++m) print_move(json, names, made.moves[m]);
    json.end_array();
    for (const Compute& computed : made.computes)
      if (computed.dst == t)
        json.key("computed")
            .begin_object()
            .field("from", names[computed.src])
            .field("operation", to_string(computed.op))
            .end_object();
    json.end_object();
  }
  json.end_array().key("dropped").begin_array();
  for (const std::string& name : dropped()) json.value(name);
  json.end_array().key("notes").begin_array();
  for (const std::string& note : made.notes) json.value(note);
  json.end_array().end_object();
  return json.text();
}

}  // namespace glu_ckpt
