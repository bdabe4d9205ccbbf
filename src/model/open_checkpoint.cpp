#include "model/open_checkpoint.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "arch/config_ranges.hpp"
#include "arch/model_view.hpp"
#include "arch/recognize_model.hpp"
#include "arch/trained_config.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "format/checkpoint_files.hpp"
#include "format/model_config.hpp"
#include "format/optimizer_parts.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "layout/unknown_orders.hpp"
#include "model/saved_arguments.hpp"
#include "model/settle_idle.hpp"
#include "model/stage.hpp"
#include "model/stored_model.hpp"
#include "model/unequal_scales.hpp"
#include "model/unwrapped_source.hpp"
#include "quant/decoded_source.hpp"
#include "quant/decoder_rules.hpp"
#include "quant/find_quantized.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMostQuantizationFileBytes = i64{64} << 20;

/// The option that would say in which order the block's FC1 holds gate and up, behind its prefix.
std::string option_about(const ExpertBlock& block) {
  if (block.set == ExpertSet::Shared) return "shared-glu";
  return block.is_optimizer_state() ? "optimizer-glu" : "glu";
}

/// Names the tensors that the option is about.
std::string_view what_is_in(std::string_view option) {
  return option == "glu" ? "FC1" : option == "shared-glu" ? "the shared expert's FC1" : "the optimizer's state of FC1";
}

/// The file of the source that holds the tensor.
std::filesystem::path file_of(const Source& source, const TensorRef& tensor) {
  if (!is_directory_at(source.path())) return source.path();
  return source.path() / source.structure().iteration_dir / source.inventory().files.at(tensor.file);
}

/// A config.json that was named says more than one that lies beside the checkpoint, and that more than a recorded one.
ModelHints config_hints(const Source& source, const SourceAnswers& answers) {
  // The arguments that the trainer saved are in no config.json.
  const auto with_trained = [&](ModelHints hints) {
    hints.trained_glu = source.hints().trained_glu;
    hints.trained_shared_glu = source.hints().trained_shared_glu;
    hints.trained_args = source.hints().trained_args;
    hints.trained_unread = source.hints().trained_unread;
    return hints;
  };
  if (answers.config_file.empty()) {
    const auto recorded = source.record().find("config");
    if (!source.hints().config.empty() || recorded == source.record().end()) return source.hints();
    return with_trained(parse_config(recorded->second, source.path().string()));
  }
  constexpr i64 kMaxNamedConfigBytes = i64{16} << 20;
  return with_trained(parse_config(read_small_file(answers.config_file, kMaxNamedConfigBytes, ErrorCode::ConfigJson),
                                   answers.config_file));
}

/// Makes the hints from a trainer's arguments where nothing else says what model it is.
ModelHints trained_hints(ModelHints hints, const Source& source, const std::string& model_type) {
  hints.no_config = why_arguments_do_not_do(hints);
  if (!hints.no_config.empty()) hints.config_options = {"--from-config"};
  if (!hints.no_config.empty() || hints.trained_args.empty()) return hints;
  const ModelView view = view_model(source.inventory(), hints);
  TrainedConfig made = make_trained_config(hints.trained_args, view.of(source.inventory()), model_type);
  hints.no_config = std::move(made.why_none);
  hints.config_options = std::move(made.options);
  if (made.text.empty()) return hints;
  ModelHints read = parse_config(made.text, "the config.json made from " + source.path().string());
  read.trained_glu = hints.trained_glu;
  read.trained_shared_glu = hints.trained_shared_glu;
  read.trained_args = hints.trained_args;
  read.trained_unread = hints.trained_unread;
  read.config_is_made = true;
  return read;
}

}  // namespace

std::string stale_quantization(const Source& source, const SourceAnswers& answers) {
  if (!lone_shard_text(source).empty() || holds_any_codes(source.inventory())) return {};
  // What was decoded is told of elsewhere.
  if (!source.info().decoded_weights.empty()) return {};
  if (const std::string method = stated_method("config.json", config_hints(source, answers).config); !method.empty())
    return fmt::format("quantization_config ('{}') of config.json", method);
  for (const ExtraFile& file : source.info().extra_files) {
    if (!is_quantization_file(file.name)) continue;
    const std::string text = read_small_file(file.path, kMostQuantizationFileBytes, ErrorCode::ConfigJson);
    if (const std::string method = stated_method(file.name, text); !method.empty())
      return fmt::format("{} ('{}')", file.name, method);
  }
  return {};
}

namespace {

ModelHints hints_of(const Source& source, const SourceAnswers& answers) {
  ModelHints hints = config_hints(source, answers);
  if (!stale_quantization(source, answers).empty()) hints.config = without_quantization(hints.config);
  if (hints.config.empty() && answers.trained_type)
    hints = trained_hints(std::move(hints), source, *answers.trained_type);
  hints.scale_rows = block_rows_of(read_quant_config(hints.config));
  return hints;
}

void add_unknown(const Checkpoint& checkpoint, const std::string& option_prefix, UnknownOrders& unknown) {
  std::vector<std::string> options;
  for (const std::string& answer : missing_answers(checkpoint.recognition)) options.push_back(option_prefix + answer);
  unknown.add(checkpoint.source->path().string(), options);
}

Recognition recognize_source(const Source& source, const ModelHints& hints, const SourceAnswers& answers) {
  return with_place(source, [&] {
    check_config_ranges(hints.config);
    return recognize_model(source.inventory(), hints, source.record(), answers);
  });
}

}  // namespace

namespace {

/// Reads the config.json of the hints and, where it has no quantization_config, the record of a conversion that made
/// scales for blocks of fewer rows.
QuantConfig recorded_quant_config(const Source& source, const ModelHints& hints) {
  QuantConfig config = read_quant_config(hints.config);
  if (!config.method.empty() || config.block_rows) return config;
  const auto recorded = source.record().find("scale_rows");
  if (recorded == source.record().end()) return config;
  config.block_rows = parse_number<i64>(recorded->second);
  if (config.block_rows && *config.block_rows < 1) config.block_rows.reset();
  return config;
}

}  // namespace

QuantConfig quant_config_of(const Source& source, const ModelHints& hints) {
  QuantConfig config = recorded_quant_config(source, hints);
  if (!holds_any_codes(source.inventory())) return config;
  for (const ExtraFile& file : source.info().extra_files)
    if (is_quantization_file(file.name) && file.name.find('/') == std::string::npos)
      config = with_quantization_file(std::move(config), file.name,
                                      read_small_file(file.path, kMostQuantizationFileBytes, ErrorCode::ConfigJson));
  return config;
}

namespace {

/// Codes and scales are what many a refusal is about that says nothing of them.
std::string decode_hint(const Error& error, const Source& source) {
  constexpr ErrorCode kOfLayouts[] = {ErrorCode::NotSupported,   ErrorCode::ExpertMissing, ErrorCode::ExpertShape,
                                      ErrorCode::UnexplainedKey, ErrorCode::ModelShape,    ErrorCode::ModelIncomplete,
                                      ErrorCode::NotDivisible,   ErrorCode::NoExperts,     ErrorCode::NotExact,
                                      ErrorCode::NoSpelling,     ErrorCode::NoMap,         ErrorCode::UnknownTensor};
  if (std::ranges::find(kOfLayouts, error.code()) == std::end(kOfLayouts)) return {};
  const std::string method = read_quant_config(source.hints().config).method;
  try {
    const Quantization found = find_quantized(source.inventory(), quant_config_of(source, source.hints()));
    // Decoding gives the weights other shapes, and some keys fewer.
    if (error.code() == ErrorCode::UnexplainedKey)
      (void)recognize_model(decoded_inventory(source.inventory(), found, Dtype::BF16), source.hints(), source.record(),
                            {});
    if (found.undecodable) return fmt::format(". '{}': {}", found.undecodable->tensor, found.undecodable->why);
  } catch (const Error& fault) {
    // An option that refuses next is no way on.
    const std::string_view why = fault.what();
    return std::string_view(error.what()).find(why) == std::string_view::npos ? fmt::format(". {}", why)
                                                                              : std::string();
  }
  if (method.empty() || !holds_any_codes(source.inventory())) return {};
  return fmt::format(". Its weights are quantized ('{}' in quantization_config): --decode bf16 reads them as bf16",
                     method);
}

}  // namespace

void fail_with_place(const Error& error, const Source& source, bool decoding) {
  const ExitStatus status = exit_status(error.code());
  if (!error.missing_options().empty() && error.file().empty())
    throw Error(error.code(), source.path().string() + ": " + error.what(), source.path().string())
        .with_missing_options(error.missing_options());
  if (!error.file().empty() || (status != ExitStatus::BrokenInput && status != ExitStatus::Refused)) throw error;
  const std::string hint = decoding ? std::string() : decode_hint(error, source);
  const auto& tensors = source.inventory().tensors;
  const auto named = std::ranges::find(tensors, error.tensor(), &TensorRef::name);
  if (error.tensor().empty() || named == tensors.end())
    fail_at(error.code(), {source.path().string(), std::nullopt, error.tensor()}, "{}{}", error.what(), hint);
  // A sound tensor that cannot be converted has no byte at fault.
  const auto offset = status == ExitStatus::BrokenInput ? std::optional(named->offset) : std::nullopt;
  fail_at(error.code(), {file_of(source, *named).string(), offset, error.tensor()}, "{}{}", error.what(), hint);
}

namespace {

/// Says in which order FC1 holds the rows of gate and up that have a scale each, where options or the record know it.
void find_parts(const Source& source, const SourceAnswers& answers, Quantization& found) {
  if (std::ranges::none_of(found.tensors, &QuantizedTensor::scales_of_parts)) return;
  struct Parts {
    i64 rows = 0;
    bool in_out = false;
  };
  std::map<std::string_view, Parts> parts;
  const Inventory decoded = decoded_inventory(source.inventory(), found, Dtype::BF16);
  const Recognition model = recognize_model(decoded, hints_of(source, answers), source.record(), answers);
  for (const ExpertBlock& block : model.blocks) {
    const bool interleaved = block.glu.kind == Glu::Kind::Interleaved;
    if (!interleaved && block.glu.kind != Glu::Kind::Contiguous) continue;
    for (const Matrix& matrix : block.matrices)
      if (matrix.role == Role::Gate && matrix.kind == TensorKind::Weight)
        parts[decoded.tensors[matrix.tensor].name] = {interleaved ? block.glu.block_rows : matrix.rows,
                                                      block.axes == Axes::InOut};
  }
  for (QuantizedTensor& weight : found.tensors) {
    const auto known = parts.find(weight.name);
    if (!weight.scales_of_parts || known == parts.end()) continue;
    weight.part_rows = known->second.rows;
    weight.in_out = known->second.in_out && !weight.transposed;
  }
}

/// The model as it is stored; none where no naming explains it: then shapes alone tell which axes its codes have.
std::optional<Recognition> recognize_stored(const Source& source, const ModelHints& hints,
                                            const SourceAnswers& answers) {
  try {
    return recognize_model(source.inventory(), hints, source.record(), answers);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Finds the quantized weights. Their scales must cover them, and their sizes must be those that the codes' own tensors
/// and config.json state: all commands judge by this one function.
Quantization find_sound(const Source& source, const ModelHints& hints, const Recognition* model) {
  const Inventory& stored = source.inventory();
  Quantization found = find_quantized(stored, quant_config_of(source, hints),
                                      model == nullptr ? WeightAxes() : weight_axes(model->blocks));
  check_stated_shapes(source, found);
  if (model == nullptr) return found;
  std::vector<TensorRef> decoded;
  for (const QuantizedTensor& weight : found.tensors) decoded.push_back({weight.name, Dtype::BF16, weight.shape});
  if (const auto misfit = find_misfit(*model, decoded)) {
    const std::string& name = stored.tensors[found.tensors[misfit->tensor].weight].name;
    fail(ErrorCode::ModelShape, {{}, name}, "'{}' holds codes, and decoded {}", name, misfit->fault);
  }
  return found;
}

std::unique_ptr<Source> open_as(const std::filesystem::path& path, const SourceAnswers& answers) {
  if (!answers.decode_as.empty() && !answers.decode)
    fail(ErrorCode::Usage, {}, "--decode-as {} says how weights are decoded; --decode bf16 or f32 says that they are",
         answers.decode_as);
  std::unique_ptr<Source> source = take_off_wrapper_words(open_source(path));
  if (!answers.decode && !answers.encode_mxfp8 && answers.scale_rows == 0) return source;
  const Source& stored = *source;
  const bool decoding = answers.decode.has_value();
  Quantization found = with_place(
      stored,
      [&] {
        const ModelHints hints = hints_of(stored, answers);
        const std::optional<Recognition> model = recognize_stored(stored, hints, answers);
        return find_sound(stored, hints, model ? &*model : nullptr);
      },
      decoding);
  if (answers.encode_mxfp8) with_place(stored, [&] { encode_mxfp8(source, std::move(found)); });
  if (!answers.encode_mxfp8 && answers.scale_rows > 0)
    with_place(stored, [&] { refine_scales(source, std::move(found), answers.scale_rows); });
  if (!decoding) return source;
  with_place(
      stored,
      [&] {
        if (!answers.decode_as.empty()) name_decoder(found, answers.decode_as);
        find_parts(stored, answers, found);
        check_decodable(stored, found);
      },
      decoding);
  return decode_source(std::move(source), std::move(found), *answers.decode,
                       answers.decode_plainly ? DecodePath::Plain : DecodePath::Fast);
}

}  // namespace

std::vector<std::string> decoder_names() { return known_decoders(); }

namespace {

std::filesystem::path dangling_path(const Source& source, const std::string& name) {
  const std::filesystem::path directory =
      is_directory_at(source.path()) ? source.path() / source.structure().iteration_dir : directory_of(source.path());
  return (directory / name).lexically_normal();
}

std::string dangling_text(const std::filesystem::path& path) {
  return fmt::format("{} is a symlink to a file that is not there; is the download complete?", path.string());
}

/// Without it the model would be taken for one of which nothing is known but its experts.
void require_config(const Source& source) {
  for (const std::string& name : source.info().dangling) {
    const bool is_read = name == "config.json" || (name_in_hf(name) == "config.json" && source.hints().config.empty());
    if (!is_read) continue;
    const std::filesystem::path path = dangling_path(source, name);
    fail(ErrorCode::NotFound, {path.string(), {}}, "{}", dangling_text(path));
  }
}

}  // namespace

std::vector<std::string> optimizer_part_texts(const Source& source) {
  std::vector<std::string> texts;
  for (const OptimizerPart& part : find_optimizer_parts(source.info()))
    texts.push_back(fmt::format(
        "'{}' holds optimizer state{} that does not say which parameters it belongs to, and that no tensor holds; the "
        "layout cannot change while it is there (--optimizer drop leaves it out, or save once with "
        "--dist-ckpt-optim-fully-reshardable)",
        part.name, part.keys.empty() ? "" : fmt::format(" ({})", part.keys)));
  return texts;
}

std::vector<std::string> dangling_texts(const Source& source) {
  std::vector<std::string> texts;
  for (const std::string& name : source.info().dangling) texts.push_back(dangling_text(dangling_path(source, name)));
  return texts;
}

namespace {

/// The quantized weights of a checkpoint, or why they cannot be told.
struct JudgedCodes {
  Quantization found;
  std::optional<Error> fault;
  /// No command can go on: scales or sizes are broken, or scales are not there. What the engine does not know, or a
  /// configuration that contradicts it, stops only what needs numbers.
  bool stops_all = false;
};

JudgedCodes judge_codes(const Source& source, const ModelHints& hints, const Recognition* model) {
  JudgedCodes judged;
  const auto has_codes = [](const TensorRef& tensor) { return holds_codes(tensor.dtype); };
  if (std::ranges::none_of(source.inventory().tensors, has_codes)) return judged;
  try {
    judged.found = with_place(
        source, [&] { return find_sound(source, hints, model); }, true);
  } catch (const Error& error) {
    judged.fault = error;
    const bool is_lost = error.code() == ErrorCode::ScaleMissing || error.code() == ErrorCode::ScaleOrphan;
    // Codes without scales, of which no configuration speaks, are moved as they are where the model is recognized.
    const bool needs_scales = model == nullptr || !quant_config_of(source, hints).method.empty();
    judged.stops_all =
        error.code() == ErrorCode::SizeMismatch || error.code() == ErrorCode::ModelShape || (is_lost && needs_scales);
  }
  return judged;
}

/// Where scales are broken, that is the fault, whatever recognition says of their tensors.
Recognition recognize_sound(const Source& source, const ModelHints& hints, const SourceAnswers& answers) {
  std::optional<Recognition> model;
  std::optional<Error> unrecognized;
  try {
    model = recognize_source(source, hints, answers);
  } catch (const Error& error) {
    unrecognized = error;
  }
  const JudgedCodes codes = judge_codes(source, hints, model ? &*model : nullptr);
  if (codes.stops_all) throw Error(*codes.fault);
  if (unrecognized) throw Error(*unrecognized);
  return std::move(*model);
}

}  // namespace

Checkpoint open_checkpoint(const std::filesystem::path& path, const SourceAnswers& answers) {
  Checkpoint checkpoint;
  checkpoint.source = open_as(path, answers);
  if (answers.config_file.empty()) require_config(*checkpoint.source);
  checkpoint.hints = hints_of(*checkpoint.source, answers);
  checkpoint.recognition = recognize_sound(*checkpoint.source, checkpoint.hints, answers);
  require_all_arguments(checkpoint.source->inventory(), checkpoint.hints, checkpoint.recognition);
  settle_idle(checkpoint);
  return checkpoint;
}

Checkpoint open_and_warn(const RunOptions& run, const std::filesystem::path& path, const SourceAnswers& answers) {
  Checkpoint checkpoint = open_checkpoint(path, answers);
  for (const std::string& text : file_doubts(*checkpoint.source, checkpoint.hints)) tell_warning(run, "{}", text);
  return checkpoint;
}

namespace {

/// Returns nothing where it cannot be told what belongs together: that is moved as it is, or refused for what moves it.
std::optional<Quantization> known_quantization(const Checkpoint& checkpoint) {
  const Source& source = *checkpoint.source;
  try {
    return find_quantized(source.inventory(), quant_config_of(source, checkpoint.hints),
                          weight_axes(checkpoint.recognition.blocks));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

namespace {

/// Says which weights a scale without rows and columns is for.
std::string_view matrix_text(const QuantizedTensor& weight) {
  return weight.one_for_all ? "all matrices of a tensor" : "each matrix";
}

/// The dtypes and grids of the scales, each once.
std::vector<std::string> scale_texts(const Inventory& inventory, const Quantization& found) {
  std::set<std::string> texts;
  for (const QuantizedTensor& weight : found.tensors) {
    std::string text =
        fmt::format("{}, one for {}", dtype_name(inventory.tensors[weight.scales].dtype), cell_text(weight));
    if (weight.global)
      text += fmt::format(", and {}, one for {}", dtype_name(inventory.tensors[*weight.global].dtype),
                          weight.scales_of_parts ? "each gate and up" : matrix_text(weight));
    texts.insert(std::move(text));
  }
  return {texts.begin(), texts.end()};
}

}  // namespace

SharedScales share_second_scales(Checkpoint& checkpoint) {
  std::map<std::size_t, SecondScales> by_gate;
  for (const ExpertBlock& block : checkpoint.recognition.blocks) {
    if (block.glu.kind != Glu::Kind::Split || block.is_optimizer_state()) continue;
    std::map<i64, SecondScales> by_expert;
    for (const Matrix& matrix : block.matrices) {
      if (matrix.kind != TensorKind::SecondScale && matrix.kind != TensorKind::GlobalScale) continue;
      if (matrix.role == Role::Gate) by_expert[matrix.expert].gate = matrix.tensor;
      if (matrix.role == Role::Up) by_expert[matrix.expert].up = matrix.tensor;
    }
    for (const auto& [expert, pair] : by_expert) by_gate.emplace(pair.gate, pair);
  }
  if (by_gate.empty()) return {};
  std::vector<SecondScales> pairs;
  pairs.reserve(by_gate.size());
  for (const auto& [gate, pair] : by_gate) pairs.push_back(pair);
  const Source& stored = *checkpoint.source;
  std::optional<Quantization> found = known_quantization(checkpoint);
  if (!found) return {};
  return with_place(stored, [&] { return share_second_scales(checkpoint.source, std::move(*found), pairs); });
}

namespace {

/// Says whether a naming explains the model that the codes decode to. Stored codes may have shapes that none does.
bool decodes_to_model(const Source& source, const Quantization& found, const SourceAnswers& answers) {
  if (found.tensors.empty()) return false;
  try {
    const Inventory decoded = decoded_inventory(source.inventory(), found, Dtype::BF16);
    return !recognize_model(decoded, hints_of(source, answers), source.record(), answers).blocks.empty();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

namespace {

/// Trainers do not look at a quantization_config, but what is made of their checkpoints would have it.
void tell_stale_quantization(const SourceAnswers& answers, Inspection& inspection) {
  const std::string stale = stale_quantization(*inspection.source, answers);
  if (stale.empty()) return;
  const std::string text = fmt::format("{} says that weights are quantized, and none is", stale);
  if (!inspection.recognition->layout.naming.starts_with("hf")) {
    inspection.warnings.push_back(text + ": `convert` leaves it out");
    return;
  }
  inspection.problems.push_back(
      text +
      ": programs would look for codes and scales that are not there. Remove it, or let `convert --decode bf16` "
      "write the model without it");
  inspection.loads_in = {{}, text};
}

}  // namespace

Inspection inspect(const std::filesystem::path& path, const SourceAnswers& answers) {
  Inspection inspection;
  inspection.source = open_as(path, answers);
  if (const auto foreign = inspection.source->record().find("foreign_order");
      foreign != inspection.source->record().end())
    inspection.warnings.push_back("the checkpoint may load and compute something else. " + foreign->second);
  inspection.problems = dangling_texts(*inspection.source);
  const ModelHints stored_hints = hints_of(*inspection.source, answers);
  const std::optional<Recognition> stored = recognize_stored(*inspection.source, stored_hints, answers);
  for (std::string& text : bare_code_texts(inspection.source->inventory(), stored ? *stored : Recognition()))
    inspection.problems.push_back(std::move(text));
  const JudgedCodes codes = judge_codes(*inspection.source, stored_hints, stored ? &*stored : nullptr);
  const Quantization& found = codes.found;
  inspection.quantized = found.formats;
  inspection.scales = scale_texts(inspection.source->inventory(), found);
  if (codes.fault) inspection.problems.emplace_back(codes.fault->what());
  if (codes.stops_all) inspection.fault = codes.fault;
  try {
    const ModelHints hints = hints_of(*inspection.source, answers);
    inspection.recognition = recognize_source(*inspection.source, hints, answers);
    for (const std::string& problem : inspection.recognition->problems) inspection.problems.push_back(problem);
    for (std::string& text : contradiction_texts(hints, *inspection.recognition, inspection.source->inventory()))
      inspection.warnings.push_back(std::move(text));
    for (std::string& text : optimizer_part_texts(*inspection.source)) inspection.problems.push_back(std::move(text));
    for (std::string& text : unread_argument_texts(*inspection.source, hints))
      inspection.problems.push_back(std::move(text));
    for (std::string& text : unequal_scales(*inspection.source, inspection.recognition->blocks))
      inspection.warnings.push_back(std::move(text));
    if (const std::string text = lone_shard_text(*inspection.source); !text.empty())
      inspection.problems.push_back(text);
    for (const std::string& answer : missing_answers(*inspection.recognition))
      inspection.problems.push_back(
          fmt::format("the order of gate and up in {} is unknown: say {}{} contiguous|interleaved:K, or record it with "
                      "`glu-ckpt stamp`, which writes it into the checkpoint",
                      what_is_in(answer), answers.option_prefix, answer));
    for (std::string& text : flaw_texts(*inspection.source, hints, *inspection.recognition))
      inspection.problems.push_back(std::move(text));
    inspection.loads_in = loads_in(*inspection.source, hints, *inspection.recognition, !inspection.quantized.empty());
    tell_stale_quantization(answers, inspection);
  } catch (const Error& error) {
    // What recognition says of broken scales follows from their fault.
    if (!codes.stops_all) inspection.problems.emplace_back(error.what());
    if (codes.stops_all || !decodes_to_model(*inspection.source, found, answers))
      inspection.fault = codes.stops_all ? *codes.fault : error;
    else
      inspection.problems.back() +=
          ". As they are stored they cannot be moved; `glu-ckpt inspect --decode bf16` shows their layout";
  }
  if (codes.stops_all) inspection.loads_in = {{}, codes.fault->what()};
  const std::vector<ExpertBlock> none;
  for (std::string& text : unequal_scales_of_parts(*inspection.source, found,
                                                   inspection.recognition ? inspection.recognition->blocks : none))
    inspection.warnings.push_back(std::move(text));
  return inspection;
}

std::string recorded_digest_of(const Checkpoint& checkpoint) {
  const Record& record = checkpoint.source->record();
  const auto recorded = record.find("digest");
  if (recorded == record.end() || !checkpoint.recognition.dropped.empty()) return {};
  // It is one of keys with all of their words.
  if (checkpoint.source->info().respelled) return {};
  const bool was_whole = record.contains("model_type");
  const bool is_whole = checkpoint.recognition.architecture != nullptr;
  // Earlier versions did not look at what is outside of the experts.
  return was_whole == is_whole && recorded->second.starts_with("gck2:") ? recorded->second : std::string();
}

std::vector<std::string> missing_answers(const Recognition& recognition) {
  std::vector<std::string> missing;
  for (const ExpertBlock& block : recognition.blocks)
    if (block.glu.kind == Glu::Kind::Unknown && std::ranges::find(missing, option_about(block)) == missing.end())
      missing.push_back(option_about(block));
  if (recognition.layout.is_dense() && recognition.layout.glu.kind == Glu::Kind::Unknown) missing.push_back("glu");
  // An order that is unknown of the weights is unknown of their states, and one answer is for both.
  if (std::ranges::find(missing, "glu") != missing.end()) std::erase(missing, "optimizer-glu");
  return missing;
}

std::string lone_shard_text(const Source& source) {
  if (is_directory_at(source.path())) return {};
  const std::size_t shards = shards_promised(source.path().filename().string());
  if (shards < 2) return {};
  return fmt::format(
      "{}: is one of {} shards by its name, and holds a part of a model; give the directory that all of "
      "them are in for the whole one",
      source.path().string(), shards);
}

bool has_unknown_glu(const Recognition& recognition) { return !missing_answers(recognition).empty(); }

void require_known_glu(const Checkpoint& checkpoint, const ExpertBlock& block, const std::string& option_prefix) {
  if (block.glu.kind != Glu::Kind::Unknown) return;
  UnknownOrders unknown;
  unknown.add(checkpoint.source->path().string(), {option_prefix + option_about(block)});
  unknown.check();
}

void require_known_glu(const Checkpoint& checkpoint, const std::string& option_prefix) {
  UnknownOrders unknown;
  add_unknown(checkpoint, option_prefix, unknown);
  unknown.check();
}

void require_known_glu(const Checkpoint& a, const std::string& a_prefix, const Checkpoint& b,
                       const std::string& b_prefix) {
  UnknownOrders unknown;
  add_unknown(a, a_prefix, unknown);
  add_unknown(b, b_prefix, unknown);
  unknown.check();
}

i64 tensor_bytes(const Model& model) {
  const auto& tensors = model.source->inventory().tensors;
  i64 bytes = 0;
  for (const TensorRef& tensor : tensors) bytes += tensor.bytes;
  for (const std::size_t index : model.recognition->dropped) bytes -= tensors[index].bytes;
  return bytes;
}

}  // namespace glu_ckpt
