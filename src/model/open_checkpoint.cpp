#include "model/open_checkpoint.hpp"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "arch/config_ranges.hpp"
#include "arch/model_view.hpp"
#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "layout/adapter_names.hpp"
#include "model/adapter_view.hpp"
#include "model/laid_out_source.hpp"
#include "model/locate_errors.hpp"
#include "model/saved_arguments.hpp"
#include "model/settle_copies.hpp"
#include "model/source_hints.hpp"
#include "model/source_steps.hpp"
#include "model/stage.hpp"
#include "model/stored_codes.hpp"
#include "model/stored_model.hpp"
#include "quant/check_codes.hpp"
#include "quant/decoded_source.hpp"
#include "quant/decoder_rules.hpp"
#include "quant/encode_row.hpp"

namespace glu_ckpt {
namespace {

class UnwrappedSource final : public Source {
 public:
  UnwrappedSource(std::unique_ptr<Source> stored, CheckpointInfo info)
      : stored_(std::move(stored)), info_(std::move(info)) {}

  const CheckpointInfo& info() const override { return info_; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    stored_->read_scattered(tensor, offset, pieces);
  }
  bool is_cheap_in_parts() const override { return stored_->is_cheap_in_parts(); }
  const ContentCheck* content_check() const override { return stored_->content_check(); }
  const FileBacked* file_backed() const override { return stored_->file_backed(); }
  std::vector<u32> files_of(std::size_t tensor) const override { return stored_->files_of(tensor); }

 private:
  std::unique_ptr<Source> stored_;
  CheckpointInfo info_;
};

/// Returns the source itself where no key has such words. Else its info() has a warning that names one, and
/// `respelled`. Throws RedundantKeys where two keys become one.
std::unique_ptr<Source> take_off_wrapper_words(std::unique_ptr<Source> source) {
  if (!has_wrapper_words(source->inventory())) return source;
  CheckpointInfo info = source->info();
  const std::string first = take_off_wrapper_words(info.inventory, info.hints);
  if (first.empty()) return source;
  info.respelled = true;
  info.warnings.push_back(
      fmt::format("'{}': keys have words in them that torch.compile, FSDP, activation checkpointing or DDP put there, "
                  "and programs look for keys without them; what glu-ckpt reads and writes is without them",
                  first));
  return std::make_unique<UnwrappedSource>(std::move(source), std::move(info));
}

/// The model as it is stored; none where no naming explains it: then shapes alone tell which axes its codes have.
std::optional<Recognition> recognize_stored(const Source& source, const ModelHints& hints,
                                            const SourceAnswers& answers) {
  try {
    return recognize_source(source, hints, answers);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Decodes codes, or moves them to other codes and scales, as the answers ask.
std::unique_ptr<Source> recast(std::unique_ptr<Source> source, const SourceAnswers& answers) {
  const bool is_mxfp8 = answers.encode == "mxfp8" && !answers.decode;
  if (!answers.decode && !is_mxfp8 && answers.scale_rows == 0) return source;
  const Source& stored = *source;
  const bool decoding = answers.decode.has_value();
  Quantization found = locate_errors(
      stored,
      [&] {
        const ModelHints hints = hints_of(stored, answers);
        check_config_ranges(hints.config);
        const std::optional<Recognition> model = recognize_stored(stored, hints, answers);
        return find_sound(stored, hints, model ? &*model : nullptr);
      },
      decoding);
  // Decoded and encoded again they would be rounded twice, for nothing.
  const bool is_changed = !answers.merge.empty() || answers.pad_experts > 0 || !answers.dtypes.empty();
  if (decoding && !answers.encode.empty() && !is_changed && has_codes_of(stored, found, answers)) return source;
  if (is_mxfp8) locate_errors(stored, [&] { encode_mxfp8(source, std::move(found)); });
  if (!is_mxfp8 && answers.scale_rows > 0)
    locate_errors(stored, [&] { refine_scales(source, std::move(found), answers.scale_rows); });
  if (!decoding) return source;
  locate_errors(
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

std::unique_ptr<Source> open_as(std::unique_ptr<Source> as_stored, const SourceAnswers& answers) {
  if (!answers.decode_as.empty() && !answers.decode)
    fail(ErrorCode::Usage, {}, "--decode-as {} says how weights are decoded; --decode bf16 or f32 says that they are",
         answers.decode_as);
  if (!answers.encode_as.empty() && answers.encode.empty())
    fail(ErrorCode::Usage, {}, "--encode-as {} says how weights are encoded; --encode FORMAT says that they are",
         answers.encode_as);
  std::unique_ptr<Source> source = take_off_wrapper_words(std::move(as_stored));
  check_adapter_answers(answers, is_adapter(source->inventory()));
  if (is_adapter(source->inventory())) {
    const Source& adapter = *source;
    if (answers.adapter_layout != "stored") locate_errors(adapter, [&] { view_adapter(source, answers); });
    return source;
  }
  ModelHints named;
  named.named_config = answers.config_file;
  // Whatever a step throws is about the source that it found.
  const auto step = [&](bool is_asked, void (*wrap)(std::unique_ptr<Source>&, const SourceAnswers&)) {
    const Source& found = *source;
    if (is_asked) locate_errors(found, [&] { name_configuration(named, [&] { wrap(source, answers); }); });
  };
  step(!answers.fill_from.empty(), fill_source);
  // An adapter knows layers and experts by the numbers that they have in the whole model.
  const bool is_part = asks_for_part(answers), is_merged = !answers.merge.empty();
  step(is_part, is_merged ? lay_out_for_part : take_part);
  source = recast(std::move(source), answers);
  const bool is_recast = source->info().recast_tensors > 0 && !answers.decode;
  if (!answers.merge_as.empty() && answers.merge.empty())
    fail(ErrorCode::Usage, {}, "--merge-as {} says how an adapter is merged; --merge ADAPTER says which",
         answers.merge_as);
  step(is_merged, merge_adapter);
  step(is_part && is_merged, take_part);
  step(answers.pad_experts > 0 || answers.unpad, pad_experts);
  step(!answers.dtypes.empty(), cast_tensors);
  step(!answers.encode.empty() && !is_recast, encode_weights);
  return source;
}

std::vector<std::string> decoder_names() { return known_decoders(); }
std::vector<std::string> encoder_words() { return known_encodings(); }
std::vector<std::string> encoder_programs() { return known_encoders(); }

JudgedSource judge_source(const Source& source, const SourceAnswers& answers) {
  JudgedSource judged;
  judged.hints = hints_of(source, answers);
  try {
    judged.model = locate_errors(source, [&] {
      return name_configuration(judged.hints, [&] {
        check_config_ranges(judged.hints.config);
        return recognize_source(source, judged.hints, answers);
      });
    });
  } catch (const Error& error) {
    judged.unrecognized = error;
  }
  judged.codes = judge_codes(source, judged.hints, judged.model ? &*judged.model : nullptr);
  return judged;
}

Checkpoint open_checkpoint(const std::filesystem::path& path, const SourceAnswers& answers) {
  return open_checkpoint(open_source(path), answers);
}

Checkpoint open_checkpoint(std::unique_ptr<Source> stored, const SourceAnswers& answers) {
  Checkpoint checkpoint;
  checkpoint.source = open_as(std::move(stored), answers);
  if (answers.config_file.empty()) require_config(*checkpoint.source);
  JudgedSource judged = judge_source(*checkpoint.source, answers);
  // Where scales are broken, that is the fault, whatever recognition says of their tensors.
  if (judged.codes.stops_all) throw Error(*judged.codes.fault);
  if (judged.unrecognized) throw Error(*judged.unrecognized);
  checkpoint.hints = std::move(judged.hints);
  checkpoint.recognition = std::move(*judged.model);
  require_all_arguments(checkpoint.source->inventory(), checkpoint.hints, checkpoint.recognition);
  if (!checkpoint.recognition.idle.empty()) settle_idle(checkpoint);
  return checkpoint;
}

Checkpoint open_and_warn(const RunOptions& run, const std::filesystem::path& path, const SourceAnswers& answers) {
  Checkpoint checkpoint = open_checkpoint(path, answers);
  for (const std::string& text : file_doubts(*checkpoint.source, checkpoint.hints)) tell_warning(run, "{}", text);
  return checkpoint;
}

std::string recorded_digest_of(const Checkpoint& checkpoint) {
  const Record& record = checkpoint.source->record();
  const auto recorded = record.find("digest");
  if (recorded == record.end() || !checkpoint.recognition.dropped.empty()) return {};
  // It is one of keys with all of their words.
  if (checkpoint.source->info().respelled) return {};
  // That of an adapter is one of its factors and scales, in no file's layout.
  if (checkpoint.recognition.is_adapter && !checkpoint.source->inventory().tensors.back().name.ends_with(kScaleName))
    return {};
  const bool was_whole = record.contains("model_type");
  const bool is_whole = checkpoint.recognition.architecture != nullptr;
  // Earlier versions did not look at what is outside of the experts.
  return was_whole == is_whole && recorded->second.starts_with("gck2:") ? recorded->second : std::string();
}

i64 tensor_bytes(const Model& model) {
  const auto& tensors = model.source->inventory().tensors;
  i64 bytes = 0;
  for (const TensorRef& tensor : tensors) bytes += tensor.bytes;
  for (const std::size_t index : model.recognition->dropped) bytes -= tensors[index].bytes;
  return bytes;
}

}  // namespace glu_ckpt
